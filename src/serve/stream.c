/* A stream is a buffer between its writer and the server's thread. While it is empty the connection is suspended, so
 * that the server does not poll it; while it is full the writer keeps what has no room. */
#include "serve/stream.h"

#include <errno.h>
#include <microhttpd.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/clock.h"

enum { STREAM_BLOCK = 4096 };

struct wn_http_stream {
  struct wn_http_streams *all;
  struct wn_http_stream *next;
  struct MHD_Connection *connection;
  size_t begin, end; /* the part of `data` in use */
  bool ended, gone;  /* ended: by the writer; gone: the client has left */
  bool suspended;    /* the connection waits for data */
  int socket;        /* the connection's; -1: unknown */
  int status;        /* the answer's status, if its head waits */
  int holders;
  char data[WN_HTTP_STREAM_ROOM];
};

void wn_http_streams_init(struct wn_http_streams *s) {
  *s = (struct wn_http_streams){.first = NULL};
  pthread_mutex_init(&s->lock, NULL);
  wn_cond_init(&s->none);
}

void wn_http_streams_clear(struct wn_http_streams *s) {
  pthread_cond_destroy(&s->none);
  pthread_mutex_destroy(&s->lock);
}

/* With the lock held: resumes the connection, which reads the stream again. */
static void stream_wake(struct wn_http_stream *s) {
  if (s->suspended) MHD_resume_connection(s->connection);
  s->suspended = false;
}

void wn_http_streams_close(struct wn_http_streams *all) {
  pthread_mutex_lock(&all->lock);
  all->closing = true;
  for (struct wn_http_stream *s = all->first; s; s = s->next) {
    s->gone = true;
    stream_wake(s);
  }
  pthread_mutex_unlock(&all->lock);
}

void wn_http_streams_wait(struct wn_http_streams *all) {
  pthread_mutex_lock(&all->lock);
  while (all->first) pthread_cond_wait(&all->none, &all->lock);
  pthread_mutex_unlock(&all->lock);
}

struct wn_http_stream *wn_http_stream_create(struct wn_http_streams *all, struct MHD_Connection *connection) {
  struct wn_http_stream *s;
  if (WN_ALLOC(NULL, "a stream", 1, &s) != WN_OK) return NULL;
  s->all = all;
  s->connection = connection;
  const union MHD_ConnectionInfo *info =
      connection ? MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD) : NULL;
  s->socket = info ? info->connect_fd : -1;
  s->status = 200;
  s->holders = 2; /* writer and response; the writer may end it before there is a response */
  pthread_mutex_lock(&all->lock);
  s->gone = all->closing;
  s->next = all->first;
  all->first = s;
  pthread_mutex_unlock(&all->lock);
  return s;
}

/* Called with the lock held, which it releases. */
static void stream_release(struct wn_http_stream *s) {
  struct wn_http_streams *all = s->all;
  const bool last = --s->holders == 0;
  if (last) {
    struct wn_http_stream **at = &all->first;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    if (!all->first) pthread_cond_signal(&all->none);
  }
  pthread_mutex_unlock(&all->lock);
  if (!last) return;
  wn_free(s);
}

/* Runs in the server's thread. */
static ssize_t stream_read(void *user, uint64_t place, char *out, size_t most) {
  struct wn_http_stream *s = user;
  ssize_t n = 0;
  (void)place;
  pthread_mutex_lock(&s->all->lock);
  const size_t held = s->end - s->begin;
  if (s->gone) {
    n = MHD_CONTENT_READER_END_WITH_ERROR;
  } else if (held > 0) {
    n = (ssize_t)(held < most ? held : most);
    memcpy(out, s->data + s->begin, (size_t)n);
    s->begin += (size_t)n;
  } else if (s->ended) {
    n = MHD_CONTENT_READER_END_OF_STREAM;
  } else {
    s->suspended = true;
    MHD_suspend_connection(s->connection);
  }
  pthread_mutex_unlock(&s->all->lock);
  return n;
}

bool wn_http_stream_wait(struct wn_http_stream *s) {
  pthread_mutex_lock(&s->all->lock);
  const bool waits = !s->gone && !s->ended && s->end == s->begin;
  if (waits) {
    s->suspended = true;
    MHD_suspend_connection(s->connection);
  }
  pthread_mutex_unlock(&s->all->lock);
  return waits;
}

void wn_http_stream_set_status(struct wn_http_stream *s, int status) {
  pthread_mutex_lock(&s->all->lock);
  s->status = status;
  pthread_mutex_unlock(&s->all->lock);
}

int wn_http_stream_status(struct wn_http_stream *s) {
  pthread_mutex_lock(&s->all->lock);
  const int status = s->status;
  pthread_mutex_unlock(&s->all->lock);
  return status;
}

/* The response is no longer needed: it was sent, or the connection is closed. */
static void stream_on_closed(void *user) {
  struct wn_http_stream *s = user;
  pthread_mutex_lock(&s->all->lock);
  s->gone = true;
  s->suspended = false;
  stream_release(s);
}

struct MHD_Response *wn_http_stream_response(struct wn_http_stream *s) {
  struct MHD_Response *r =
      MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, stream_read, s, stream_on_closed);
  if (!r) {
    wn_http_stream_drop(s);
    return NULL;
  }
  return r;
}

void wn_http_stream_drop(struct wn_http_stream *s) {
  pthread_mutex_lock(&s->all->lock);
  s->gone = true;
  stream_release(s);
}

/* With the lock held: adds as much as there is room for. */
static size_t stream_put(struct wn_http_stream *s, const char *data, size_t bytes) {
  if (s->begin > 0) { /* moves the rest to the front */
    memmove(s->data, s->data + s->begin, s->end - s->begin);
    s->end -= s->begin;
    s->begin = 0;
  }
  const size_t room = WN_HTTP_STREAM_ROOM - s->end, n = bytes < room ? bytes : room;
  memcpy(s->data + s->end, data, n);
  s->end += n;
  if (n > 0) stream_wake(s);
  return n;
}

bool wn_http_socket_is_closed(int socket) {
  char byte;
  if (socket < 0) return false;
  const ssize_t n = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

size_t wn_http_stream_offer(struct wn_http_stream *s, const char *data, size_t bytes) {
  pthread_mutex_lock(&s->all->lock);
  if (!s->gone && s->suspended && wn_http_socket_is_closed(s->socket)) {
    s->gone = true;
    stream_wake(s);
  }
  const size_t n = s->gone ? SIZE_MAX : bytes ? stream_put(s, data, bytes) : 0;
  pthread_mutex_unlock(&s->all->lock);
  return n;
}

void wn_http_stream_end(struct wn_http_stream *s) {
  pthread_mutex_lock(&s->all->lock);
  s->ended = true;
  stream_wake(s);
  stream_release(s);
}
