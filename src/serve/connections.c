/* A list of connections and a thread that watches their times. A connection is cut by shutting its socket down; the
 * server's thread then finds it closed and frees it. The lock is held from finding a connection in the list to cutting
 * it, so that its socket cannot belong to another connection by then. */
#include "serve/connections.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#ifdef __linux__
#include <linux/sockios.h>
#endif

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

/* Seconds for which a new connection is not cut while there is room in the reserve; seconds between checks of all
 * times. */
#define GRACE 1.0
#define LOOK 0.25

struct wn_connection {
  struct wn_connection *before, *after;
  int socket;
  unsigned char address[16]; /* IPv6, or an IPv4 as one */
  bool own, cut;             /* own: from this machine; cut: its socket is shut down */
  enum wn_connection_phase phase;
  double since;
};

/* --- with the lock --- */

static void connection_cut(struct wn_connection *c) {
  if (!c->cut) shutdown(c->socket, SHUT_RDWR);
  c->cut = true;
}

/* Is the connection beyond its time, and is that the client's doing? It is the server's if bytes that the client has
 * sent are still unread, or if the client has taken all that was sent to it. */
static bool connection_is_late(const struct wn_connections *all, const struct wn_connection *c, double now) {
  int bytes = 0;
  const double limit = all->seconds[c->phase];
  if (limit <= 0 || now - c->since <= limit) return false;
#ifdef __linux__
  if (c->phase == WN_CONNECTION_ANSWER) return ioctl(c->socket, SIOCOUTQ, &bytes) != 0 || bytes > 0;
#endif
  return c->phase == WN_CONNECTION_ANSWER || ioctl(c->socket, FIONREAD, &bytes) != 0 || bytes == 0;
}

static bool connection_waits(const struct wn_connection *c) {
  return !c->cut && (c->phase == WN_CONNECTION_HEAD || c->phase == WN_CONNECTION_BODY);
}

/* The connection that has waited longest without a complete request, among those with the address of `like`, or among
 * all if like is NULL. */
static struct wn_connection *connections_slowest(const struct wn_connections *all, const struct wn_connection *like) {
  struct wn_connection *slowest = NULL;
  for (struct wn_connection *c = all->first; c; c = c->after)
    if (connection_waits(c) && (!like || !memcmp(c->address, like->address, sizeof c->address)) &&
        (!slowest || c->since < slowest->since))
      slowest = c;
  return slowest;
}

static int connections_of(const struct wn_connections *all, const struct wn_connection *like) {
  int n = 0;
  for (const struct wn_connection *c = all->first; c; c = c->after)
    n += !c->cut && (!like || !memcmp(c->address, like->address, sizeof c->address));
  return n;
}

/* After a new connection: cuts others if there are too many. */
static void connections_make_room(const struct wn_connections *all, struct wn_connection *newest) {
  const int open = connections_of(all, NULL);
  if (!newest->own && connections_of(all, newest) > (all->limit + 1) / 2)
    connection_cut(connections_slowest(all, newest)); /* which may be the new one itself */
  else if (open > all->limit) {
    struct wn_connection *slowest = connections_slowest(all, NULL);
    /* When many come at once, the reserve gives each some time. */
    if (newest->since - slowest->since >= GRACE || open > all->limit + all->limit / 4 + 8) connection_cut(slowest);
  }
}

/* --- calls --- */

static void connection_set_address(struct wn_connection *c, const struct sockaddr *address) {
  static const unsigned char four[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (address && address->sa_family == AF_INET) {
    const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
    memcpy(c->address, four, sizeof four);
    memcpy(c->address + sizeof four, &in->sin_addr, 4);
  } else if (address && address->sa_family == AF_INET6) {
    memcpy(c->address, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, sizeof c->address);
  }
  const struct in6_addr *as = (const struct in6_addr *)(const void *)c->address;
  c->own = IN6_IS_ADDR_LOOPBACK(as) || (!memcmp(c->address, four, sizeof four) && c->address[12] == 127);
}

struct wn_connection *wn_connections_open(struct wn_connections *all, int socket, const struct sockaddr *address) {
  struct wn_connection *c;
  if (WN_ALLOC(NULL, "a connection", 1, &c) != WN_OK) {
    shutdown(socket, SHUT_RDWR);
    return NULL;
  }
  c->socket = socket;
  c->phase = WN_CONNECTION_HEAD;
  c->since = wn_seconds_now();
  connection_set_address(c, address);
  pthread_mutex_lock(&all->lock);
  c->after = all->first;
  if (all->first) all->first->before = c;
  all->first = c;
  if (all->count++ == 0) pthread_cond_signal(&all->news);
  connections_make_room(all, c);
  pthread_mutex_unlock(&all->lock);
  return c;
}

void wn_connections_close(struct wn_connections *all, struct wn_connection *c) {
  if (!c) return;
  pthread_mutex_lock(&all->lock);
  *(c->before ? &c->before->after : &all->first) = c->after;
  if (c->after) c->after->before = c->before;
  all->count--;
  pthread_mutex_unlock(&all->lock);
  wn_free(c);
}

void wn_connections_enter(struct wn_connections *all, struct wn_connection *c, enum wn_connection_phase phase) {
  if (!c) return;
  pthread_mutex_lock(&all->lock);
  c->phase = phase;
  c->since = wn_seconds_now();
  pthread_mutex_unlock(&all->lock);
}

bool wn_connections_busy(struct wn_connections *all) {
  int n = 0;
  pthread_mutex_lock(&all->lock);
  for (const struct wn_connection *c = all->first; c; c = c->after) n += !c->cut && !connection_waits(c);
  pthread_mutex_unlock(&all->lock);
  return n >= all->limit;
}

/* --- the watch --- */

static void *connections_watch(void *user) {
  struct wn_connections *all = user;
  pthread_mutex_lock(&all->lock);
  while (!all->stop) {
    if (all->count == 0) {
      pthread_cond_wait(&all->news, &all->lock);
      continue;
    }
    const double now = wn_seconds_now();
    for (struct wn_connection *c = all->first; c; c = c->after)
      if (connection_is_late(all, c, now)) connection_cut(c);
    wn_cond_wait_until(&all->news, &all->lock, now + LOOK);
  }
  pthread_mutex_unlock(&all->lock);
  return NULL;
}

wn_status wn_connections_start(wn_context *ctx, struct wn_connections *all) {
  pthread_mutex_init(&all->lock, NULL);
  wn_cond_init(&all->news);
  all->watched = wn_thread_start(&all->watch, connections_watch, all);
  if (all->watched) return WN_OK;
  pthread_cond_destroy(&all->news);
  pthread_mutex_destroy(&all->lock);
  return wn_fail(ctx, WN_ERR_MEMORY, "cannot start the thread that watches connections");
}

void wn_connections_stop(struct wn_connections *all) {
  if (!all->watched) return;
  pthread_mutex_lock(&all->lock);
  all->stop = true;
  pthread_cond_signal(&all->news);
  pthread_mutex_unlock(&all->lock);
  pthread_join(all->watch, NULL);
  pthread_cond_destroy(&all->news);
  pthread_mutex_destroy(&all->lock);
  all->watched = false;
}
