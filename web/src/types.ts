// Made by `go generate ./web` from the OpenAPI documents; do not edit.

export interface Access {
  callers?: string[];
  calls?: string[];
  closed?: boolean;
}

export interface Addon {
  app?: string;
  by?: string;
  changed: string;
  created: string;
  description?: string;
  digest?: string;
  id: string;
  kinds?: string[];
  name: string;
  resources?: string[];
  revision: number;
  source?: string;
  tenant: string;
  values?: Record<string, unknown>;
  version: string;
  webhooks?: string[];
}

export interface AddonApplied {
  addon: Addon;
  changes: AddonChange[];
  webhooks?: Webhook[];
}

export interface AddonChange {
  action: "create" | "update" | "delete" | "release" | "none";
  id: string;
  kind: "app" | "kind" | "resource" | "webhook";
}

export interface AddonPackage {
  description?: string;
  kinds?: NewCustomKind[];
  min_treeline?: string;
  name: string;
  parameters?: unknown;
  resources?: NewCustomResource[];
  sla?: unknown;
  version: string;
  webhooks?: AddonWebhook[];
}

export interface AddonWebhook {
  kinds?: string[];
  reasons?: string[];
  url: string;
}

export interface AddressRange {
  from: number;
  start?: string;
  to: number;
}

export interface Addresses {
  closest_ip?: string;
  instances?: AddressRange[];
  rr_ip?: string;
  rr_ip_v6?: string;
}

export interface Aggregate {
  bandwidth_unknown?: number;
  capacity: Resources;
  features?: string[];
  free: Resources;
  hull?: Geo[];
  largest: Resources;
  latency?: CoordSpread;
  mean: Resources;
  nodes: number;
  overlay_nodes?: number;
  slots?: Slot[];
  std_dev: Resources;
  unplaced?: number;
  yields?: Preemptible[];
}

export interface App {
  by?: string;
  completed?: number;
  created: string;
  dormant?: number;
  failed?: number;
  id: string;
  leaving?: boolean;
  revision: number;
  running: number;
  services: string[];
  spec: Application;
  tenant: string;
  wanted: number;
}

export interface AppPlan {
  action: string;
  changes?: FieldChange[];
  id: string;
  instances?: InstancePlan[];
  revision?: number;
  rollouts?: RollOutPlan[];
  scaling?: ScalingNow[];
  schedules?: NextRuns[];
}

export interface Application {
  applicationID?: string;
  application_desc?: string;
  application_name: string;
  application_namespace: string;
  labels?: Record<string, string>;
  microservices: Microservice[];
}

export interface Applied {
  apps: App[];
}

export interface Authority {
  behind?: AuthorityBehind[];
  ends: string;
  generation: number;
  since?: string;
  state?: "requested" | "announced" | "signing" | "retired";
  waits?: string;
}

export interface AuthorityBehind {
  error?: string;
  generation: number;
  node: string;
}

export interface Backend {
  address: string;
  epoch: number;
  instance: string;
  load?: number;
  peer: string;
  state: string;
}

export interface Capped {
  claims: string;
  counts: string;
  what: string;
}

export interface Caps {
  devices?: Record<string, number>;
  memory_mb?: number;
  milli_cpu?: number;
  no_privileged?: boolean;
  nodes?: number;
  storage_mb?: number;
}

export interface Carried {
  received_bytes: number;
  sent_bytes: number;
}

export interface Cause {
  constraint: string;
  count: number;
  detail?: string;
}

export interface ChangePassword {
  old: string;
  password: string;
}

export interface ChangeUserRequest {
  disabled?: boolean;
  email?: string;
  roles: string[];
}

export interface Check {
  command?: string[];
  failures?: number;
  grpc?: GRPCCheck;
  http?: HTTPCheck;
  initial_delay?: number;
  interval?: number;
  successes?: number;
  tcp?: TCPCheck;
  timeout?: number;
}

export interface Cluster {
  aggregate: Aggregate;
  block: number;
  grant: Grant;
  heard?: string;
  id: string;
  instances: number;
  joined: string;
  location?: string;
  network_error?: string;
  reserved: Resources;
  revision: number;
  shares?: string[];
  status: string;
  tenant?: string;
  version?: string;
}

export interface ClusterAccess {
  cluster: string;
  expires: string;
  token: string;
}

export interface ClusterBehind {
  cluster: string;
  error?: string;
  generation: number;
  names?: string[];
  nodes?: number;
}

export interface ClusterLatencies {
  links: LinkStatus[];
}

export interface ClusterPlan {
  instances: InstancePlan[];
}

export interface ClusterPlanRequest {
  gone?: string[];
  instances: WhyRequest[];
}

export interface ClusterView {
  age_seconds: number;
  asked: boolean;
  cluster: string;
  error?: string;
}

export interface ClusterWhy {
  answer: Explanation;
  at: string;
  cluster: string;
}

export interface Connectivity {
  con_constraints: LinkConstraint[];
  target_microservice_id: string;
}

export interface Constraint {
  allowed?: string[];
  area?: string;
  by?: string;
  cluster?: string;
  convergence_time?: number;
  labels?: string[];
  limit?: number;
  location?: string;
  needs?: string[];
  node?: string;
  polygon?: string[];
  rigidness?: number;
  service?: string;
  services?: string[];
  share?: number;
  target?: string;
  threshold?: number;
  type: string;
}

export interface CoordSpread {
  center: Coordinate;
  nodes: number;
  radius: number;
}

export interface Coordinate {
  adjustment: number;
  error: number;
  height: number;
  vec: number[];
}

export interface CreatePersonalTokenRequest {
  name: string;
  roles?: string[];
  ttl_seconds: number;
}

export interface CreateTenantRequest {
  path: string;
  title?: string;
}

export interface CreateUserRequest {
  email?: string;
  id: string;
  roles: string[];
}

export interface CustomKind {
  by?: string;
  changed: string;
  created: string;
  description?: string;
  id: string;
  name: string;
  resources: number;
  revision: number;
  schema: unknown;
  tenant: string;
}

export interface CustomResource {
  by?: string;
  changed: string;
  created: string;
  id: string;
  kind: string;
  name: string;
  revision: number;
  spec: unknown;
  tenant: string;
}

export interface DeadLetter {
  error: string;
  event: Event;
  time: string;
}

export interface Device {
  count: number;
  name: string;
}

export interface Disruption {
  max_unavailable?: number;
}

export interface Event {
  by?: string;
  cluster?: string;
  detail?: string;
  epoch?: number;
  instance?: string;
  kind: string;
  object: string;
  reason?: string;
  seq: number;
  state?: string;
  tenant?: string;
  tier: string;
  time: string;
}

export interface Explanation {
  candidates?: Rejection[];
  causes?: Cause[];
  considered: number;
  nearest?: Rejection;
  scale?: ScaleStanding;
}

export interface FieldChange {
  new?: string;
  old?: string;
  path: string;
}

export interface File {
  config?: string;
  content?: string;
  mode?: string;
  on_change?: string;
  path: string;
  secret?: string;
  template?: boolean;
}

export interface GRPCCheck {
  port: number;
  service?: string;
}

export interface Geo {
  lat: number;
  lon: number;
}

export interface Grant {
  caps?: Caps;
  open: boolean;
  tenants?: string[];
}

export interface HTTPCheck {
  headers?: string[];
  path?: string;
  port: number;
  scheme?: string;
  status?: string;
}

export interface Health {
  liveness?: Check;
  none?: boolean;
  readiness?: Check;
  startup?: Check;
}

export interface HostPort {
  port: number;
  protocol: string;
}

export interface Installer {
  sha256: string;
  url: string;
}

export interface Instance {
  address?: string;
  cluster?: string;
  created: string;
  detail?: string;
  devices?: string[];
  epoch: number;
  exit_code?: number;
  failures?: number;
  id: string;
  leaving?: boolean;
  node?: string;
  number: number;
  placements: number;
  ready?: boolean;
  reason?: string;
  restarts: number;
  revision: number;
  runs?: Run[];
  service: string;
  since: string;
  spec_revision: number;
  stale?: boolean;
  state: string;
  violated?: string;
}

export interface InstancePlan {
  action: string;
  after_seconds?: number;
  cluster?: string;
  displaces?: boolean;
  headroom?: string[];
  id: string;
  make_way?: string[];
  node?: string;
  others?: number;
  score?: number;
  why?: Explanation;
}

export interface InstanceUsage {
  at: string;
  cluster: string;
  epoch: number;
  in_bytes_per_second: number;
  instance: string;
  memory_bytes: number;
  milli_cpu: number;
  node?: string;
  out_bytes_per_second: number;
}

export interface Invitation {
  code: string;
  expires: string;
  user: string;
}

export interface JoinToken {
  cluster?: string;
  command?: string;
  expires: string;
  id: string;
  install?: Installer;
  kind: string;
  tenant?: string;
  token?: string;
  uses: number;
}

export interface Latencies {
  links: LinkStatus[];
  silent?: string[];
}

export interface LinkConstraint {
  convergence_time?: number;
  rigidness?: number;
  share?: number;
  threshold: number;
  type: string;
}

export interface LinkStatus {
  by: "connections" | "node" | "coordinates";
  instance: string;
  limit_ns: number;
  rtt_ns: number;
  to: string;
}

export interface Login {
  password: string;
  user: string;
}

export interface Microservice {
  added_files?: File[];
  addresses?: Addresses;
  arch?: string[];
  bandwidth_in?: number;
  bandwidth_out?: number;
  callers?: string[];
  calls?: string[];
  cmd?: string[];
  code: string;
  completions?: number;
  connectivity?: Connectivity[];
  constraints?: Constraint[];
  deadline?: number;
  devices?: Device[];
  disruption?: Disruption;
  environment?: string[];
  exclusive?: boolean;
  files?: File[];
  health?: Health;
  labels?: Record<string, string>;
  max_attempts?: number;
  memory?: number;
  microserviceID?: string;
  microservice_name: string;
  microservice_namespace: string;
  move?: string;
  network?: string;
  on_disconnect?: string;
  one_shot?: boolean;
  parallelism?: number;
  platform?: string;
  port?: string;
  priority?: string;
  privileged?: boolean;
  replicas?: number;
  scale?: Scale;
  schedule?: Schedule;
  stdin?: boolean;
  stop_grace?: number;
  storage?: number;
  time_to_live?: number;
  tty?: boolean;
  update?: Update;
  vcpu?: number;
  vcpus?: number;
  vgpus?: number;
  virtualization: string;
  volumes?: Volume[];
  vtpus?: number;
}

export interface MoveRequest {
  to?: string;
}

export interface NetStatus {
  cluster?: string;
  error?: string;
  key: string;
  listen: string;
  mapped?: string[];
  node?: string;
  plane: string;
  ready: boolean;
  subnet?: string;
}

export interface NetTrace {
  from: string;
  ok: boolean;
  steps: TraceStep[];
  to: string;
}

export interface NewAddon {
  digest?: string;
  package: AddonPackage;
  source?: string;
  values?: Record<string, unknown>;
}

export interface NewCustomKind {
  description?: string;
  name?: string;
  schema: unknown;
}

export interface NewCustomResource {
  kind?: string;
  name?: string;
  spec: unknown;
}

export interface NewSnapshot {
  name: string;
}

export interface NewValues {
  data: Record<string, string>;
  name?: string;
  registry?: string;
  type?: string;
}

export interface NewWebhook {
  kinds?: string[];
  reasons?: string[];
  tenant?: string;
  url: string;
}

export interface NextRuns {
  cron: string;
  service: string;
  times?: string[];
}

export interface Node {
  addons?: string[];
  address?: string;
  allocated: Resources;
  arch: string;
  areas?: string[];
  bandwidth_unknown?: boolean;
  brokers?: string[];
  capacity: Resources;
  capped?: Capped[];
  caps?: Caps;
  cluster: string;
  coord?: Coordinate;
  cpu_used_percent: number;
  csi?: NodeCSI[];
  devices?: NodeDevice[];
  features?: string[];
  heard?: string;
  hostname?: string;
  id: string;
  instances: number;
  joined: string;
  labels?: Record<string, string>;
  location?: Geo;
  memory_used_percent: number;
  network?: string;
  network_error?: string;
  os: string;
  ports?: NodePorts;
  privileged?: boolean;
  purge_error?: string;
  purging?: boolean;
  remaining?: Remaining[];
  reserved?: Resources;
  runtime_error?: string;
  runtimes: string[];
  status: string;
  subnet?: string;
  version?: string;
  volumes?: NodeVolume[];
}

export interface NodeCSI {
  driver: string;
  node_id: string;
  topology?: Record<string, string>;
}

export interface NodeDevice {
  id: string;
  kinds: string[];
  model?: string;
}

export interface NodePorts {
  own?: HostPort[];
  publish?: PortRange[];
}

export interface NodeUsage {
  allocated: Resources;
  at: string;
  capacity: Resources;
  cluster: string;
  instances: Usage;
  machine: Usage;
  node: string;
  running: number;
}

export interface NodeVolume {
  epoch: number;
  id: string;
  size_mb: number;
}

export interface OperatorRequest {
  name: string;
  roles?: string[];
  ttl_seconds: number;
}

export interface OperatorToken {
  by?: string;
  created: string;
  expires: string;
  name: string;
  roles: string[];
  token?: string;
}

export interface PAT {
  created: string;
  expires: string;
  id: string;
  name: string;
  roles: string[];
  user: string;
}

export interface PairStatus {
  again: number;
  connections: number;
  least_rtt_ns: number;
  local: string;
  remote: string;
  rtt_ns: number;
  seen: string;
}

export interface Peer {
  chain: string[];
  cluster: string;
  coord?: Coordinate;
  endpoints?: string[];
  key: string;
  node?: string;
  proof: string;
  relay: Relay;
  rev: number;
  subnets: string[];
}

export interface PeerStatus {
  cluster?: string;
  dropped_packets: number;
  endpoint?: string;
  handshake?: string;
  kernel?: Carried;
  key: string;
  loss: number;
  measured?: string;
  mtu?: number;
  node?: string;
  path: string;
  reason?: string;
  rtt_ns?: number;
  tunnel: Carried;
}

export interface PersonalToken {
  created: string;
  expires: string;
  id: string;
  name: string;
  roles: string[];
  token?: string;
  user: string;
}

export interface Placement {
  at: string;
  cluster: string;
  epoch: number;
  reason?: string;
  score?: number;
}

export interface Plan {
  apps: AppPlan[];
  clusters?: ClusterView[];
  revision: number;
}

export interface PortMap {
  host: number;
  instance: number;
  protocol: string;
}

export interface PortRange {
  first: number;
  last: number;
}

export interface Position {
  coord?: Coordinate;
  geo?: Geo;
}

export interface Preemptible {
  free: Resources;
  largest: Resources;
  urgency: number;
}

export interface Principal {
  pat?: string;
  roles: string[];
  tenant?: string;
  user: string;
}

export interface Problem {
  code: string;
  detail?: string;
  errors?: ProblemField[];
  retryable?: boolean;
  status: number;
  title: string;
  type: string;
}

export interface ProblemField {
  detail: string;
  pointer?: string;
  where?: string;
}

export interface PrometheusTarget {
  labels: Record<string, string>;
  targets: string[];
}

export interface QueryGoal {
  query: string;
  target: number;
}

export interface RankedCluster {
  cluster: string;
  score: number;
}

export interface Redeem {
  code: string;
  password: string;
  user: string;
}

export interface Refresh {
  refresh: string;
}

export interface Rejection {
  candidate: string;
  constraint: string;
  have?: string;
  need?: string;
  short?: string;
  shortfall?: number;
}

export interface Relay {
  addr: string;
  slot: number;
  ticket: number;
}

export interface Remaining {
  instance: string;
  reason?: string;
  state?: string;
  stuck?: boolean;
  why: string;
}

export interface Replica {
  name: string;
  role?: "active" | "standby";
  since?: string;
  state: "alive" | "failed" | "left" | "unknown";
  url: string;
  version?: string;
}

export interface Replicas {
  replicas: number;
}

export interface RequestGoal {
  counter: string;
  path?: string;
  port: number;
  target: number;
}

export interface Resources {
  in_mbit?: number;
  memory_mb: number;
  milli_cpu: number;
  out_mbit?: number;
  storage_mb?: number;
}

export interface RestoreState {
  awaits_root?: boolean;
  held: boolean;
  restored?: string;
  silent?: string[];
  silent_nodes?: string[];
  taken?: string;
  unknown?: UnknownInstance[];
}

export interface RollOut {
  began: string;
  detail?: string;
  ended?: string;
  extra?: number;
  failed_version?: number;
  healthy_version?: number;
  policy: string;
  ready: number;
  replicas: number;
  service: string;
  state: string;
  succeeded: number;
  updated: number;
  version: number;
  waiting?: number;
}

export interface RollOutHistory {
  versions: RollOutVersion[];
}

export interface RollOutPlan {
  policy: string;
  service: string;
}

export interface RollOutVersion {
  began: string;
  by?: string;
  changes?: FieldChange[];
  code: string;
  detail?: string;
  ended?: string;
  result: string;
  version: number;
}

export interface RootAuthority {
  behind?: ClusterBehind[];
  by?: string;
  ends: string;
  generation: number;
  pin: string;
  since?: string;
  state?: "signing" | "retired";
}

export interface RotateAuthority {
  leave_behind?: string[];
  retire?: boolean;
}

export interface RotateKey {
  revoke_tokens?: boolean;
}

export interface RotateRootAuthority {
  leave_behind?: string[];
  retire?: boolean;
}

export interface RouteStatus {
  access: Access;
  addresses: ServiceAddresses;
  asleep?: boolean;
  backends?: Backend[];
  chosen?: Record<string, number>;
  idle_ns: number;
  latency_ns?: Record<string, number>;
  pairs?: PairStatus[];
  peers?: Peer[];
  ports?: PortMap[];
  refused?: string;
  rev: number;
  service: string;
}

export interface Run {
  at: string;
  detail?: string;
  ended?: string;
  exit_code?: number;
  reason?: string;
  result: string;
  started?: string;
}

export interface SLA {
  applications: Application[];
  customerID?: string;
  sla_version: string;
}

export interface Scale {
  connections?: number;
  cpu?: number;
  idle_time?: number;
  max: number;
  memory?: number;
  min?: number;
  prometheus?: QueryGoal;
  requests?: RequestGoal;
  stabilisation_down?: number;
  stabilisation_up?: number;
}

export interface ScaleMetric {
  name: string;
  target: number;
  unit?: string;
  value?: number;
  wants?: number;
}

export interface ScaleStanding {
  assigned: number;
  awake: number;
  fault?: string;
  idle?: number;
  metrics?: ScaleMetric[];
  running: number;
  waits?: string;
  why?: string;
}

export interface ScalingNow {
  cluster: string;
  now?: ScaleStanding;
  service: string;
}

export interface Schedule {
  cron: string;
  overlap?: string;
  runs_at_once?: number;
  starting_deadline?: number;
  suspend?: boolean;
  time_zone?: string;
}

export interface Service {
  addresses?: ServiceAddresses;
  app: string;
  completed?: number;
  dormant?: number;
  failed?: number;
  id: string;
  labels?: Record<string, string>;
  replicas: number;
  revision: number;
  rollout?: string;
  running: number;
  spec: Microservice;
  spec_revision: number;
  versions?: Version[];
}

export interface ServiceAddresses {
  closest?: string;
  instances?: Record<string, string>;
  rr?: string;
}

export interface Session {
  access: string;
  expires: string;
  refresh?: string;
  replicas?: string[];
  roles: string[];
  tenant?: string;
  user: string;
}

export interface SigningKey {
  ends?: string;
  id: string;
  made: string;
  replaced?: string;
  signs: string;
}

export interface Slot {
  addons?: string[];
  arch: string;
  areas?: string[];
  bandwidth_unknown?: number;
  devices?: SlotDevice[];
  features?: string[];
  free: Resources;
  largest: Resources;
  network?: boolean;
  nodes: number;
  privileged?: boolean;
  runtime: string;
}

export interface SlotDevice {
  free: number;
  largest: number;
  name: string;
}

export interface SnapshotRequest {
  recipients?: string[];
}

export interface SnapshotSchedule {
  cron?: string;
  error?: string;
  failed?: string;
  keep?: number;
  next?: string;
  overdue?: boolean;
  recipients?: string[];
  taken: SnapshotTaken[];
  time_zone?: string;
  to?: string;
}

export interface SnapshotState {
  ready: boolean;
  size_mb: number;
}

export interface SnapshotTaken {
  name: string;
  sha256: string;
  size: number;
  time: string;
}

export interface Status {
  aggregate: Aggregate;
  block: number;
  id: string;
  instances: number;
  location?: string;
  nodes: number;
  root_connected: boolean;
  tenant?: string;
  version?: string;
}

export interface StreamLife {
  life_seconds: number;
}

export interface TCPCheck {
  port: number;
}

export interface Target {
  area?: string;
  positions: Position[];
  service?: string;
}

export interface Tenant {
  created: string;
  path: string;
  title?: string;
}

export interface TokenRequest {
  cluster?: string;
  kind?: string;
  open?: boolean;
  tenant?: string;
  ttl_seconds?: number;
  uses?: number;
}

export interface TraceStep {
  detail: string;
  ok: boolean;
  what: string;
}

export interface Undo {
  to?: number;
}

export interface UnknownInstance {
  cluster: string;
  instance: string;
  node?: string;
}

export interface Unmeasured {
  cluster?: string;
  instance?: string;
  node?: string;
  reason: string;
}

export interface Update {
  auto_rollback?: boolean;
  canaries?: number;
  deadline?: number;
  min_healthy_time?: number;
  parallelism?: number;
  surge?: number;
}

export interface Usage {
  in_bytes_per_second: number;
  memory_bytes: number;
  milli_cpu: number;
  out_bytes_per_second: number;
}

export interface UsagesInstanceUsage {
  items: InstanceUsage[];
  missing?: Unmeasured[];
}

export interface UsagesNodeUsage {
  items: NodeUsage[];
  missing?: Unmeasured[];
}

export interface User {
  created: string;
  disabled?: boolean;
  email?: string;
  id: string;
  pending?: boolean;
  roles: string[];
}

export interface ValueKey {
  bytes: number;
  name: string;
}

export interface Values {
  by?: string;
  changed: string;
  created: string;
  data?: Record<string, string>;
  digest: string;
  id: string;
  keys: ValueKey[];
  kind: string;
  registry?: string;
  revision: number;
  services?: string[];
  tenant: string;
  type?: string;
  version: number;
}

export interface Version {
  code: string;
  instances: number;
  running: number;
  spec_revision: number;
}

export interface Volume {
  access_mode?: string;
  config?: Record<string, string>;
  csi_driver?: string;
  mount_path: string;
  name?: string;
  read_only?: boolean;
  size?: number;
  snapshot?: string;
  type?: string;
  volume_id?: string;
}

export interface VolumeSnapshot {
  cluster: string;
  created: string;
  csi_driver: string;
  id: string;
  ready: boolean;
  revision: number;
  size_mb: number;
  tenant: string;
}

export interface VolumeStatus {
  access_mode?: string;
  cluster: string;
  created: string;
  csi_driver?: string;
  id: string;
  in_use: boolean;
  revision: number;
  size_mb: number;
  tenant: string;
}

export interface Webhook {
  addon?: string;
  by: string;
  created: string;
  dead?: DeadLetter[];
  delivered: number;
  error?: string;
  id: string;
  kinds?: string[];
  lost?: number;
  next?: string;
  reasons?: string[];
  secret?: string;
  tenant: string;
  tries?: number;
  url: string;
}

export interface Why {
  clusters?: ClusterWhy[];
  instance: Instance;
  next_try?: string;
  placements?: Placement[];
  ranked?: RankedCluster[];
  root: Explanation;
  searching_until?: string;
  summary: string;
  would_help?: string[];
}

export interface WhyRequest {
  instance: string;
  searched?: boolean;
  spec: Microservice;
  targets?: Target[];
}
