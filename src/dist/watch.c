/* The watch over the other processes. MPI does not report a process that died, and waits for ever for one that hangs.
 *
 * Every process has a connection to rank 0, beside the transport, and a thread that sends a sign of life once a second.
 * A connection that closes without a goodbye means that the process died, silence for WATCH_SILENT seconds that it
 * hangs; a process that fails sends its error line. Rank 0 tells all others, so that every process stops within
 * seconds, whatever call it is in. A process that was itself stopped for a while (a suspended machine, a debugger)
 * blames nobody and starts counting again.
 *
 * A connection must send a random number that rank 0 has given to all processes through the transport, so that nobody
 * else can join. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "dist/group.h"

enum { WATCH_ADDRESSES = 16, WATCH_HOST = 64 };
#define WATCH_BEAT 1.0    /* seconds between signs of life */
#define WATCH_SILENT 6.0  /* without a sign of life, then the process is lost */
#define WATCH_CONNECT 5.0 /* for connecting */
#define WATCH_SAY 3.0     /* that others wait for rank 0 to say what has failed */

enum watch_kind { WATCH_ALIVE, WATCH_FAILED, WATCH_LOST, WATCH_BYE };

/* A message on a connection. The first one identifies its sender. */
struct watch_message {
  uint64_t secret;
  int32_t kind, rank;
  int32_t pid, about; /* about: in WATCH_LOST, the process that is lost */
  char host[WATCH_HOST];
  char line[WN_DIST_LINE];
};

struct wn_dist_peer {
  int fd; /* -1: gone */
  int rank;
  int pid;
  bool left; /* said goodbye */
  double heard;
  char host[WATCH_HOST];
  size_t have; /* bytes received into `in` */
  struct watch_message in;
};

/* Where rank 0 listens. */
struct watch_place {
  uint64_t secret;
  char host[WATCH_HOST];
  int32_t pid, count;
  struct sockaddr_storage at[WATCH_ADDRESSES];
};

static void watch_message_init(struct watch_message *m, const struct wn_dist *d, enum watch_kind kind,
                               const char *line) {
  memset(m, 0, sizeof *m);
  m->secret = d->watch.secret;
  m->kind = kind;
  m->rank = d->rank;
  m->pid = getpid();
  m->about = d->rank;
  gethostname(m->host, sizeof m->host - 1);
  snprintf(m->line, sizeof m->line, "%s", line);
}

/* A message is shorter than any socket's buffer. If it does not fit, the other side is not reading, which its silence
 * will show. */
static void watch_send(const struct wn_dist_peer *peer, const struct watch_message *m) {
  if (peer->fd >= 0 && send(peer->fd, m, sizeof *m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

/* Records why the group broke up; only the first reason counts. The program's callback is called before waits can see
 * it, so that a program that exits in the callback does not also print the error of a wait. */
static void watch_lose(struct wn_dist *d, int about, const char *line, bool found) {
  struct wn_dist_watch *w = &d->watch;
  int none = 0;
  if (!atomic_compare_exchange_strong(&w->state, &none, 1)) return;
  snprintf(w->line, sizeof w->line, "%s", line);
  struct watch_message m;
  watch_message_init(&m, d, WATCH_LOST, line);
  m.about = about;
  for (int i = 0; d->rank == 0 && i < w->peer_count; i++)
    if (!w->peers[i].left) watch_send(&w->peers[i], &m);
  /* Rank 0 tells the user, or rank 1 if rank 0 is gone without a word. A process that failed itself has its own
   * error. */
  if (w->lost && about != d->rank) w->lost(w->user, w->line, d->rank == 0 || (d->rank == 1 && found));
  atomic_store(&w->state, 2);
}

static void watch_read(struct wn_dist *d, struct wn_dist_peer *peer, const struct watch_message *m) {
  char line[WN_DIST_LINE + WATCH_HOST + 64];
  peer->heard = wn_seconds_now();
  if (m->kind == WATCH_BYE) peer->left = true;
  if (m->kind == WATCH_LOST) watch_lose(d, m->about, m->line, false);
  if (m->kind != WATCH_FAILED) return;
  snprintf(line, sizeof line, "process %d of %d (%s): %s", m->rank, d->size, m->host, m->line[0] ? m->line : "failed");
  watch_lose(d, m->rank, line, false);
}

static void watch_gone(struct wn_dist *d, struct wn_dist_peer *peer, const char *how) {
  char line[WN_DIST_LINE];
  const char *kept = atomic_load(&d->watch.kept);
  close(peer->fd);
  peer->fd = -1;
  if (peer->left) return;
  snprintf(line, sizeof line, "process %d of %d (%s, pid %d) %s%s%s", peer->rank, d->size, peer->host, peer->pid, how,
           kept ? "; " : "", kept ? kept : "");
  watch_lose(d, peer->rank, line, true);
}

/* Handles all messages that have arrived. */
static void watch_receive(struct wn_dist *d, struct wn_dist_peer *peer) {
  while (peer->fd >= 0) {
    const ssize_t n = recv(peer->fd, (char *)&peer->in + peer->have, sizeof peer->in - peer->have, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) {
      watch_gone(d, peer, "has died");
      return;
    }
    peer->have += (size_t)n;
    if (peer->have < sizeof peer->in) continue;
    peer->have = 0;
    peer->in.line[WN_DIST_LINE - 1] = peer->in.host[WATCH_HOST - 1] = 0;
    if (peer->in.secret == d->watch.secret) watch_read(d, peer, &peer->in);
  }
}

static void *watch_run(void *user) {
  struct wn_dist *d = user;
  struct wn_dist_watch *w = &d->watch;
  double beat = 0, woken = wn_seconds_now();
  for (;;) {
    w->polls[0] = (struct pollfd){.fd = w->wake[0], .events = POLLIN};
    for (int i = 0; i < w->peer_count; i++) w->polls[1 + i] = (struct pollfd){.fd = w->peers[i].fd, .events = POLLIN};
    poll(w->polls, (nfds_t)(1 + w->peer_count), 250);
    const double now = wn_seconds_now();
    if (w->polls[0].revents) return NULL;
    const bool away = now - woken > 2; /* this process itself was stopped */
    woken = now;
    for (int i = 0; i < w->peer_count; i++) {
      struct wn_dist_peer *peer = &w->peers[i];
      if (peer->fd < 0) continue;
      if (away) peer->heard = now;
      if (w->polls[1 + i].revents) watch_receive(d, peer);
      if (peer->fd >= 0 && !peer->left && now - peer->heard > WATCH_SILENT)
        watch_gone(d, peer, "has not answered for 6 seconds");
    }
    if (now - beat < WATCH_BEAT) continue;
    beat = now;
    struct watch_message alive;
    watch_message_init(&alive, d, WATCH_ALIVE, "");
    for (int i = 0; i < w->peer_count; i++) watch_send(&w->peers[i], &alive);
  }
}

/* --- connecting --- */

/* All addresses of this machine, loopback last. */
static void watch_addresses(struct watch_place *place, uint16_t port) {
  struct ifaddrs *all;
  if (getifaddrs(&all)) return;
  for (int loopback = 0; loopback < 2; loopback++)
    for (const struct ifaddrs *a = all; a && place->count < WATCH_ADDRESSES; a = a->ifa_next) {
      if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET || !(a->ifa_flags & IFF_UP)) continue;
      if (((a->ifa_flags & IFF_LOOPBACK) != 0) != loopback) continue;
      struct sockaddr_in in;
      memcpy(&in, a->ifa_addr, sizeof in);
      in.sin_port = port;
      memcpy(&place->at[place->count++], &in, sizeof in);
    }
  freeifaddrs(all);
}

static wn_status watch_listen(wn_context *ctx, struct wn_dist *d, struct watch_place *place) {
  struct sockaddr_in any = {.sin_family = AF_INET};
  socklen_t bytes = sizeof any;
  if (getrandom(&place->secret, sizeof place->secret, 0) != (ssize_t)sizeof place->secret)
    place->secret = (uint64_t)getpid();
  d->watch.secret = place->secret;
  place->pid = getpid();
  gethostname(place->host, sizeof place->host - 1);
  d->watch.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (d->watch.listener < 0 || bind(d->watch.listener, (struct sockaddr *)&any, sizeof any) ||
      listen(d->watch.listener, d->size) || getsockname(d->watch.listener, (struct sockaddr *)&any, &bytes))
    return wn_fail(ctx, WN_ERR_IO, "process 0 cannot listen for the others: %s", strerror(errno));
  watch_addresses(place, any.sin_port);
  return WN_OK;
}

static bool watch_wait(int fd, short events, double until) {
  const double left = until - wn_seconds_now();
  struct pollfd p = {.fd = fd, .events = events};
  return left > 0 && poll(&p, 1, (int)(left * 1000) + 1) == 1;
}

static void watch_socket(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* Rank 0: accepts one connection from each of the others and closes those of strangers. */
static wn_status watch_accept(wn_context *ctx, struct wn_dist *d) {
  struct wn_dist_watch *w = &d->watch;
  const double until = wn_seconds_now() + 2 * WATCH_CONNECT;
  for (int have = 0; have < w->peer_count;) {
    if (!watch_wait(w->listener, POLLIN, until))
      return wn_fail(ctx, WN_ERR_IO, "%d of %d processes could not reach process 0", w->peer_count - have, d->size);
    const int fd = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) continue;
    struct watch_message m;
    size_t got = 0;
    while (got < sizeof m && watch_wait(fd, POLLIN, until)) {
      const ssize_t n = recv(fd, (char *)&m + got, sizeof m - got, 0);
      if (n <= 0) break;
      got += (size_t)n;
    }
    struct wn_dist_peer *peer = got == sizeof m && m.rank >= 1 && m.rank < d->size ? &w->peers[m.rank - 1] : NULL;
    if (!peer || m.secret != w->secret || peer->fd >= 0) {
      close(fd);
      continue;
    }
    m.host[WATCH_HOST - 1] = 0;
    watch_socket(fd);
    *peer = (struct wn_dist_peer){.fd = fd, .rank = m.rank, .pid = m.pid, .heard = wn_seconds_now()};
    memcpy(peer->host, m.host, sizeof peer->host);
    have++;
  }
  return WN_OK;
}

static int watch_try(const struct sockaddr_storage *at, double until) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int error = 0;
  socklen_t bytes = sizeof error;
  if (fd < 0) return -1;
  if (connect(fd, (const struct sockaddr *)at, sizeof(struct sockaddr_in)) == 0 ||
      (errno == EINPROGRESS && watch_wait(fd, POLLOUT, until) &&
       !getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) && !error)) {
    fcntl(fd, F_SETFL, 0);
    return fd;
  }
  close(fd);
  return -1;
}

static wn_status watch_connect(wn_context *ctx, struct wn_dist *d, const struct watch_place *place) {
  char host[WATCH_HOST] = "";
  gethostname(host, sizeof host - 1);
  struct wn_dist_peer *peer = &d->watch.peers[0];
  *peer = (struct wn_dist_peer){.fd = -1, .pid = place->pid, .heard = wn_seconds_now()};
  memcpy(peer->host, place->host, sizeof peer->host);
  const bool near = !strcmp(host, place->host);
  for (int i = 0; i < place->count && peer->fd < 0; i++) /* on the same machine loopback first */
    peer->fd = watch_try(&place->at[near ? place->count - 1 - i : i], wn_seconds_now() + WATCH_CONNECT / place->count);
  if (peer->fd < 0)
    return wn_fail(ctx, WN_ERR_IO, "process %d on %s cannot reach process 0 on %s", d->rank, host, place->host);
  watch_socket(peer->fd);
  struct watch_message hello;
  watch_message_init(&hello, d, WATCH_ALIVE, "");
  watch_send(peer, &hello);
  return WN_OK;
}

wn_status wn_dist_watch_begin(wn_context *ctx, struct wn_dist *d, wn_dist_lost_fn lost, void *user) {
  struct wn_dist_watch *w = &d->watch;
  struct watch_place place = {0};
  w->listener = w->wake[0] = w->wake[1] = -1;
  w->lost = lost;
  w->user = user;
  const int count = d->rank == 0 ? d->size - 1 : 1;
  WN_TRY(WN_ALLOC(ctx, "watch over processes", count, &w->peers));
  w->peer_count = count;
  for (int i = 0; i < count; i++) w->peers[i].fd = -1;
  WN_TRY(WN_ALLOC(ctx, "watch over processes", count + 1, &w->polls));
  if (d->rank == 0) WN_TRY(watch_listen(ctx, d, &place));
  WN_TRY(wn_dist_broadcast(ctx, &place, sizeof place, 0));
  w->secret = place.secret;
  WN_TRY(d->rank == 0 ? watch_accept(ctx, d) : watch_connect(ctx, d, &place));
  if (pipe2(w->wake, O_CLOEXEC)) return wn_fail(ctx, WN_ERR_IO, "no pipe for the watch: %s", strerror(errno));
  w->running = wn_thread_start(&w->thread, watch_run, d);
  return w->running ? WN_OK : wn_fail(ctx, WN_ERR_MEMORY, "no thread for the watch over processes");
}

void wn_dist_watch_end(struct wn_dist *d, const char *failure) {
  struct wn_dist_watch *w = &d->watch;
  if (w->running) {
    const char stop = 0;
    if (write(w->wake[1], &stop, 1) == 1) pthread_join(w->thread, NULL);
  }
  struct watch_message m;
  if (failure && d->rank == 0) watch_lose(d, 0, failure, false);
  if (!failure || d->rank != 0) {
    watch_message_init(&m, d, failure ? WATCH_FAILED : WATCH_BYE, failure ? failure : "");
    for (int i = 0; i < w->peer_count; i++) watch_send(&w->peers[i], &m);
  }
  /* A launcher ends all processes once the first has exited: wait, so that rank 0 has time to say why. */
  const double until = wn_seconds_now() + WATCH_SAY;
  while (failure && d->rank != 0 && w->peers && w->peers[0].fd >= 0 && watch_wait(w->peers[0].fd, POLLIN, until) &&
         recv(w->peers[0].fd, &m, sizeof m, 0) > 0)
    continue;
  for (int i = 0; i < w->peer_count; i++) {
    if (w->peers[i].fd < 0) continue;
    shutdown(w->peers[i].fd, SHUT_WR);
    close(w->peers[i].fd);
  }
  for (int i = 0; i < 2; i++)
    if (w->wake[i] >= 0) close(w->wake[i]);
  if (w->listener >= 0) close(w->listener);
  wn_free(w->peers);
  wn_free(w->polls);
}
