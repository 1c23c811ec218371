// xterm.js makes <style> elements, which the dashboard's content security policy refuses. This
// element applies its text as a style sheet of the document instead, which is allowed.
export function styleElement() {
  const e = document.createElement('span');
  const sheet = new CSSStyleSheet();
  e.hidden = true;
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  Object.defineProperty(e, 'textContent', { set: (text) => sheet.replaceSync(text) });
  const remove = e.remove.bind(e);
  e.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet);
    remove();
  };
  return e;
}
