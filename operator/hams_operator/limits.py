"""Every bound of the control plane, by name; the unit is the last word."""

# ---- the local runtime's etcd ----

etcd_start_s = 15.0
"""An etcd started here has to answer within this time; it usually takes 0.2 s, three members 0.4 s."""

etcd_stop_s = 1.0
"""An etcd that has been asked to end is killed after this time: the last members of a cluster would wait for
a quorum that will not come."""

etcd_start_attempts_max = 3
"""Attempts with other free ports, if somebody else takes one between its choice and its use."""

etcd_members_max = 5
"""Members of a local etcd."""

# ---- local runs ----

process_start_s = 20.0
"""A fork by the warmed process, or its end, takes no longer than this."""

logs_kept_max = 200
"""Log files kept of one run of a graph."""

runs_logged_max = 5
"""Earlier runs of a graph whose logs are kept."""

disk_room_bytes_min = 64 << 20
"""A filesystem with less room than this is called full in `hams status`: the next log or checkpoint may not
fit."""

pipe_columns = 10_000
"""A table that is written to no terminal is never cut: whoever reads it may look for a whole name."""

metrics_answer_s = 2.0
"""A process that has not answered a scrape for this long is left out of the page."""

metrics_bytes_max = 16 << 20
"""What one process may say of itself."""

metrics_line_bytes_max = 16 << 10
"""A line of a request for the page."""

load_connect_s = 5.0
"""`hams load` begins only if something takes a connection within this time."""

log_bytes_max = 8 << 20
"""A log file larger than this is cut; that much of its end becomes its `.1`. No more of a log is read for
`hams logs`."""

log_look_s = 1.0
"""Between two looks at the size of log files."""

restart_pause_s = 0.2
"""Pause before a process that has ended is started again; doubled each time it ends young."""

restart_pause_max_s = 10.0
"""Longest such pause."""

restart_young_s = 10.0
"""A process that ends within this time of its start ended young."""

status_probe_s = 1.0
"""An instance that has not answered a status question for this long is shown without what it alone knows."""

status_probe_again_s = 0.05
"""After this long without an answer the question is sent again."""

status_etcd_s = 1.5
"""A look at a run waits no longer than this for etcd; then it looks with what it knew."""

status_interval_s = 0.1
"""Between two looks at a starting graph."""

stop_grace_s = 5.0
"""Processes that were asked to end and have not after this long are killed."""

control_line_bytes_max = 1 << 20
"""A question or an answer on the control socket."""

control_answer_s = 10.0
"""A supervisor that has not answered a question for this long is said not to."""

down_s = 40.0
"""`hams down` kills a supervisor that has not ended its graph within this time; its processes die with it."""

lock_wait_s = 1.0
lock_pause_s = 0.02
"""How long a start waits for somebody who only clears away what a dead run left, and between two looks."""

model_check_s = 120.0
"""One check of a model by `hams up --check`; one that takes longer is given up, and the graph is started all
the same."""

model_checks_at_once = 2
"""Checks beside each other: each may load a deep-learning library."""

sources_digested_max = 1000
"""Python files beside a graph whose change has its models checked again."""

ready_timeout_s = 60.0
"""Default of `hams up --timeout`."""

table_interval_s = 0.5
"""Between two looks at a graph whose table is shown."""

crash_loop_ends_min = 2
"""A process that has ended young this many times in a row is in a crash loop."""

start_ends_max = 3
"""A graph with a process that has ended young this many times before the graph was ever ready is given up."""

failure_lines_max = 20
failure_bytes_max = 64 << 10
failure_line_chars_max = 1000
"""Lines of a model's log shown with its failure, out of how much of its end, and how much of each."""

external_etcd_s = 5.0
"""An etcd given with --etcd has to answer within this time."""

stop_rest_s = 1.0
"""The rest of a graph whose frontends have drained has nothing to hand over: who has not ended after this
long is killed."""

# ---- load ----

problems_shown_max = 10
"""Wrong replies and kinds of failures shown."""

# ---- chaos ----

chaos_look_s = 0.2
"""Between two looks at a graph on a cluster."""

chaos_role_s = 30.0
"""Somebody has the role that a scenario is about within this time, and a deleted pod is going."""

chaos_redundant_s = 180.0
"""A graph is whole again within this time of a fault, images and nodes being there."""

chaos_drain_s = 300.0
"""A node is free of the graph's pods within this time."""

chaos_settle_s = 2.0
"""Load before the first fault, and after the last: what is normal is seen as well."""

# ---- demo ----

demo_start_s = 60.0
"""The demo's graph has to be ready within this time."""

demo_settle_s = 30.0
"""After the traffic the graph has to be redundant again within this time."""

# ---- what CPU a machine has for a graph ----

processes_per_core_max = 20
"""A graph with more processes than this for each core is told to be too large for its machine."""

run_processes_more = 4
"""Processes of a local run beside those of its graph: the supervisor, etcd, and two from which the others are
forked."""

delay_samples = 40
"""Short sleeps by which the delay of the machine is measured before a graph is started."""

delay_sleep_s = 0.005
"""Length of one."""

delay_work = 100_000
"""Numbers that are added up before each: a few milliseconds of work."""

suspect_after_per_delay = 4.0
"""`suspectAfter` is at least this many times the worst delay measured."""

suspect_after_raised_max_s = 3.0
"""It is raised to this at most: a machine that is busy now need not be so for ever."""

# ---- liveness probes on Kubernetes ----

live_period_s = 10
"""Between two questions of the kubelet."""

live_timeout_s = 10
"""An answer may take this long."""

live_failures = 18
"""After so many questions without an answer in a row, three minutes, a container is ended. A pod that gets no
CPU answers late, and when all of a node are late, ending them would lose every copy of a state at once.
Failover does not wait for this: managers have replaced it long before."""

# ---- instances that hang ----

hung_look_s = 0.5
"""Between two looks for instances that the graph has given up and that do not end."""

hung_revoked_s = 1.0
"""A revoked instance ends by itself at once; after this long it hangs."""

hung_missing_s = 4.0
"""One that has lost its registration is back in a moment, or hangs."""

hung_unborn_s = 20.0
"""One that was never seen registered after this long hangs: it came and went between two looks, or never got
that far."""

hung_kept_s = 30.0
"""An instance that hangs is killed after this long in a stretch; one that is back is asked to end then.
Neither, if it may have a state alone."""

hung_starved_s = 60.0
"""While the supervisor, or a process that it looks after, gets too little CPU nobody hangs before this long:
they wait for each other."""

hung_late_s = 0.1
"""A supervisor that looks later than this gets too little CPU."""

hung_wait_share = 0.5
"""So does a graph of which a process has waited for CPU for more than this part of the time since the last
look."""

hung_pause_s = 2.0
"""Pause of a graph after the replacement of an instance that hangs; doubled with each one, and gone after
`hung_calm_s` without any."""

hung_pause_max_s = 60.0
"""Longest such pause."""

hung_calm_s = 120.0
"""After this long without a replacement the next one pauses as the first one did."""

hung_aside_max = 3
"""Instances of one graph that hang and have a successor already, at a time: each of those is one or two more
processes that want CPU."""

# ---- ports ----

port_lowest = 10_240
"""Ports of a local run are drawn from here up to the kernel's ephemeral range."""

port_highest = 65_536
"""One more than the last port there is."""

port_tries_max = 200
"""Ports tried before a run says that there is none."""

# ---- the controller ----

kube_request_s = 15.0
"""The API server answers a request within this time, or the outcome is unknown."""

kube_connections_max = 600
"""Connections to the API server: `hams load` takes one for each of its own, the controller never more than
its workers and watches."""

kube_watch_s = 300
"""The API server ends a watch after this long; it is begun anew where it ended."""

kube_page_items = 500
"""Objects in one page of a list."""

kube_pause_s = 0.5
kube_pause_max_s = 30.0
"""Pause before a broken watch is begun again, doubled each time up to the second."""

etcd_look_s = 2.0
"""Between two looks at an etcd that does not answer."""

etcd_member_ask_s = 2.0
"""A member of etcd that has not said within this time who the others are is taken to be away."""

etcd_looks_vain = 2
"""So many looks in a row that find its watch silent and get no answer, and it is said to be away."""

etcd_clear_keys = 100
"""Keys removed in one transaction."""

workers_max = 16
"""Graphs worked on at a time."""

debounce_s = 0.05
"""A graph is looked at this long after something has changed about it: what changes together is seen
together."""

work_share = 0.5
rest_max_s = 5.0
"""A graph is worked on for this share of the time at most, and rests no longer than the second for it."""

again_s = 0.5
again_max_s = 60.0
"""Pause before work that failed is tried again, doubled each time up to the second."""

lease_s = 15
"""A controller that has not renewed its lease for this long is taken for dead."""

lease_renew_s = 10.0
"""One that could not renew it for this long ends itself: nobody else can have it by then."""

lease_pause_s = 2.0
"""Between two looks at the lease."""

pods_gone_s = 90.0
"""Of a deleted graph, pods that have not gone after this long (their node is away) hold the etcd keys no
longer."""

pod_unstarted_s = 15.0
"""A kubelet says that it has seen a pod within a second or two. One that has not for this long is most likely
away: Kubernetes goes on to bind pods to its node until it has been silent for 40 s."""

pod_creating_s = 10.0
"""Containers that are not made after this long lack something: then the pod's Events are asked."""

pod_look_s = 10.0
"""Between two looks at a pod that does not start."""

pods_asked_max = 3
"""Pods of a graph whose Events are asked for in one look."""

pod_silent_s = 8.0
"""A process that has lost its registration is not ready three seconds later, where a kubelet asks it. A pod
that still says Ready after this long is on a node that is away."""

pod_overdue_s = 10.0
"""A kubelet ends a pod when its grace is over; a busy one some seconds later. Where one is there for this
long afterwards, the node is away."""

pod_unseen_s = 2.0
"""The patience with pods that are bound to a node that is away."""

delete_grace_s = 5
"""Pods whose instances are over have nothing to hand over."""

certificate_days = 90
certificate_renew_days = 30
"""The webhook's certificate holds this long, and is replaced when less than the second is left."""

certificate_look_s = 3600.0
"""Between two looks at it, and at those of a graph and of etcd."""

webhook_look_s = 30.0
"""Between two looks at the webhook's certificate, and at whether the API server trusts it: somebody may have
made its configuration anew."""

secret_tries = 5
"""Of writing a Secret that others may write at the same time, before the whole look begins again later."""

metrics_token_look_s = 60.0
"""Between two looks at the token of metrics: graphs that begin together are given what one look has found."""

leaf_days = 30
leaf_renew_days = 10
"""The certificate of a graph's parts, of etcd and of its clients hold this long, and are replaced when less
than the second is left."""

authority_days = 730
authority_renew_days = 180
"""The same for the authority of a graph: so long before its end another one begins to take over."""

authority_overlap_days = 1
"""An authority is trusted for this long before it signs: by then every node has brought it to every pod, and
every process has seen it."""

etcd_authority_days = 3650
"""etcd reads whom it trusts at its start only: its authorities are not replaced by themselves
(docs/security.md)."""

probe_token_bytes = 24
"""Of randomness in the token that the kubelet's probes bear."""

aside_waiting_max = 64
"""Questions to the webhook, or graphs of the controller, that wait to be validated; one is validated at a
time."""

webhook_body_bytes_max = 4 << 20
"""A question to the webhook: the object as it was and as it shall be."""

successions_tried_max = 3
"""A change of a graph's shape that was begun and taken back is tried so often; then the resource has to be
changed."""

payload_bytes_max = 1 << 20
"""Payload bytes that a manager or an observer makes room for: nobody has any to send them."""
