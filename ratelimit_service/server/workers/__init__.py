"""Several processes on one port: a parent that listens, and workers that answer.

::

    parent ──listens, accepts; HTTP; watches the rules; adds up what the workers count
      ├── worker 1 ──an Engine: transport, methods, limiter, store
      ├── worker 2
      └── …

**Connections.** Envoy opens few and keeps them, so a kernel that spreads them by chance leaves workers idle. The parent
accepts, and hands each connection to the worker that has the fewest (`acceptor`, `sharing`). A connection waits in a
socket between the two until the worker takes it (`door`); both ends of that socket are open in the parent, who can take
back what was not taken. So a worker that hangs (`lookout`), or dies, has only those connections that it really took.

**Words.** Parent and worker talk over a second socket, in lines of JSON (`channel`). The parent sends settings, rules,
questions of `/json`, and when to stop; the worker how many connections it has taken and lost, and once a second, at
every scrape and at its end what it has counted since the last time (`report`). The worker counts from 0 again after
that, and the parent adds (`sums`), in tallies like those of a single process: so sums never go back, whoever dies, and
what a killed worker had counted since its last report, a second's worth at the most, is all that is ever lost.

**Rules** are read and parsed by the parent, which has the pages and the log lines; workers get the text of the files
that made the last good book, and parse it again. One that is replaced while wrong rules lie on disk gets good ones.

**Processes** are started anew (fork and exec), not forked: a fork copies whatever the threads of rules, pages and
resolver hold locked, and the event loop; it would share a parsed book, but reference counts soon copy its pages. The
price is a start of a third of a second and 50 MB for an interpreter. Sockets go by number, everything else in the first
line: no setting, and no secret, stands on a command line or in a worker's environment.

**Ends.** Signals are the parent's: workers have a session of their own, and ignore those that come all the same (a
service manager may send SIGTERM to every process). SIGTERM: health says NOT_SERVING in all, the grace, no more
connections, all drain, exit. A worker that dies is told in one line and replaced, after a pause that doubles while new
ones die soon; if all its clients have gone to the others by then, these send some of them back by GOAWAY. One that says
nothing and uses no CPU for half a minute is killed. A worker whose parent is gone reads the end of its channel, drains
and ends.
"""
