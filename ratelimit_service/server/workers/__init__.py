"""Several processes on one port: a parent that listens, and workers that answer.

::

    parent: App ──watches the rules; HTTP
      └── Supervisor ──listens for gRPC, accepts; starts workers; adds up what they count
            ├── worker 1: Worker ──an Engine: transport, methods, limiter, store
            ├── worker 2
            └── …

**Connections.** Envoy opens few and keeps them, so a kernel that spreads them by chance leaves workers idle. The parent
accepts, and hands each connection to the worker that has the fewest (`dispatch`). It waits in the worker's `Handoff`
(`channel`), a socket pair of which the parent holds both ends, so it can take back what the worker has not received.
A worker that hangs (`watchdog`) or dies has only the connections that it has received.

**Messages.** Parent and worker exchange lines of JSON over a second socket (`channel`). The parent sends settings,
rules, calls of `/json`, and when to drain and stop. The worker sends how many connections it has received and closed,
and what it has counted since its last report (`report`): once a second, for every scrape, and at its end. The worker
then counts from 0 again, and the parent adds, in tallies like those of a single process. So sums never go
back, and a worker that is killed loses only what it has counted since its last report, one second's worth at most.

**Rules** are read and parsed by the parent, which has the pages and the log lines. Workers get the text of what
made the last good book, also of data files, and parse it again. One that is replaced while wrong rules lie on disk
gets good ones.

**Processes** are started anew (fork and exec), not forked: a fork copies whatever locks the threads of rules, pages and
resolver hold, and the event loop; it would share a parsed book, but reference counts soon copy its pages. The price is
a start of a third of a second and 50 MB for an interpreter. Sockets are passed by number, everything else in the first
message: no setting, and no secret, stands on a command line or in a worker's environment.

**Ends.** Signals go to the parent: workers have a session of their own, and ignore those that come all the same (a
service manager may send SIGTERM to every process). On SIGTERM, health says NOT_SERVING in all; after DRAIN_SECONDS, no
more connections are accepted, all workers finish their calls, for DRAIN_TIMEOUT at most, and exit. A worker that dies
is logged in one line and replaced, after a backoff that doubles while new ones die soon; if all its clients have gone
to the others by then, these send some of them back by GOAWAY. One that sends nothing and uses no CPU for half a minute
is killed. A worker whose parent is gone reads the end of its channel, finishes its calls and ends.

The states of a worker are in `slot`.
"""
