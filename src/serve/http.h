/* An HTTP server by a table of routes, over libmicrohttpd. Private to src/serve.
 *
 * Handlers run in the server's one thread: they answer at once, or give a stream that a thread of their own writes.
 * What cannot be answered is told in one line: 403 on a loopback address for requests that do not name this machine (so
 * that no page from elsewhere can ask under another name), 404, 405, 413, 503. No encryption, no users. Slow clients do
 * not keep others out (connections.h). */
#ifndef WN_SERVE_HTTP_H
#define WN_SERVE_HTTP_H

#include "base/text.h"
#include "serve/stream.h"

struct MHD_Connection;

struct wn_http_request {
  const char *method, *path;
  const char *body; /* [body_bytes] and a NUL; borrowed, as all is, until the handler returns */
  size_t body_bytes;
  void *user; /* the server's */
  struct wn_http *http;
  struct MHD_Connection *connection;
};
/* Of "?name=value", decoded, and of the head; NULL: not there. */
const char *wn_http_query(const struct wn_http_request *request, const char *name);
const char *wn_http_header(const struct wn_http_request *request, const char *name);

/* To be filled by a handler; one of text, fixed and stream is the body. */
struct wn_http_answer {
  int status;          /* 200 */
  const char *type;    /* the route's */
  struct wn_text text; /* freed by the server; failed: the answer is 500 */
  const char *fixed;   /* [fixed_bytes], borrowed until the server is stopped */
  size_t fixed_bytes;
  struct wn_http_stream *stream; /* from wn_http_stream_open */
  bool waits;                    /* the head waits for the stream's first byte, and has its status */
  const char *content_policy;    /* Content-Security-Policy; NULL: none */
  int retry;                     /* seconds, with 429: Retry-After; 0: not said */
  void (*sent)(void *user);      /* in the server's thread, once all of the answer has left; may be NULL */
};
/* An error: text without an end of line. */
void wn_http_say(struct wn_http_answer *answer, int status, const char *line);
/* A body that is written while it is sent (stream.h); NULL: out of memory, which the answer says. */
struct wn_http_stream *wn_http_stream_open(const struct wn_http_request *request, struct wn_http_answer *answer);

struct wn_http_route {
  const char *method, *path, *type; /* "GET" answers HEAD as well; the whole path, or with "*" at its end
                                       what it begins with; the body's type */
  size_t body_limit;                /* bytes of a request's body at most; 0: it has none */
  void (*handle)(const struct wn_http_request *request, struct wn_http_answer *answer);
};

struct wn_http_options {
  const char *address;                /* IPv4 or IPv6; NULL: 127.0.0.1 */
  int port;                           /* 0: any that is free */
  const struct wn_http_route *routes; /* [route_count], borrowed */
  int route_count;
  const char *always; /* a path that is answered also while every connection has a request; NULL: none */
  void *user;         /* for the handlers */
  int connections;    /* at a time; 0: 64 */
  /* Seconds at most; 0: 10 for a head, 30 for a body, 120 for an answer to leave. */
  double head_seconds, body_seconds, answer_seconds;
};
/* WN_ERR_IO: the address cannot be had. */
wn_status wn_http_start(wn_context *ctx, const struct wn_http_options *options, struct wn_http **out);
int wn_http_port(const struct wn_http *http);
/* Streams are cut off, and new requests are not listened to: the first half of wn_http_stop, for servers whose writers
 * have to be stopped in between. */
void wn_http_close(struct wn_http *http);
/* Streams are cut off; waits for their writers to end them. NULL is allowed. */
void wn_http_stop(struct wn_http *http);

#endif
