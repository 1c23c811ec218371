// Package mainthread keeps the first thread of a process in the process's namespaces. Packages whose
// goroutines move their thread to another namespace import it.
//
// Such a thread ends with its goroutine, except for the first one: it would stay in the other namespace, and
// /proc/self and /proc/PID describe the first thread.
package mainthread

import "runtime"

// The main goroutine, which runs this, gets the first thread, and no other goroutine uses it.
func init() { runtime.LockOSThread() }
