/* An HTTP server with a table of routes, over libmicrohttpd. Private to src/serve.
 *
 * Handlers run in the server's only thread: they answer at once, or open a stream that another thread writes. Refusals
 * have one line: 403 on a loopback address for requests that do not name this machine (so that no foreign page can send
 * requests under another name), 404, 405, 413, 503. No encryption, no users. Slow clients do not keep others out
 * (connections.h). */
#ifndef WN_SERVE_HTTP_H
#define WN_SERVE_HTTP_H

#include "base/text.h"
#include "serve/stream.h"

struct MHD_Connection;

struct wn_http_request {
  const char *method, *path;
  const char *body; /* [body_bytes] and a NUL; like all fields borrowed until the handler returns */
  size_t body_bytes;
  void *user; /* of wn_http_options */
  struct wn_http *http;
  struct MHD_Connection *connection;
};
/* The decoded value of "?name=value"; a header's value. NULL: not there. */
const char *wn_http_query(const struct wn_http_request *request, const char *name);
const char *wn_http_header(const struct wn_http_request *request, const char *name);

/* A handler fills it. One of text, fixed and stream is the body. */
struct wn_http_answer {
  int status;          /* 200 */
  const char *type;    /* Content-Type; set to the route's */
  struct wn_text text; /* freed by the server; if it failed, the answer is 500 */
  const char *fixed;   /* [fixed_bytes], borrowed until the server is stopped */
  size_t fixed_bytes;
  struct wn_http_stream *stream; /* from wn_http_stream_open */
  bool waits;                    /* the head is sent with the stream's first byte, with the stream's status */
  const char *content_policy;    /* Content-Security-Policy; NULL: none */
  int retry;                     /* with 429: Retry-After in seconds; 0: none */
  void (*sent)(void *user);      /* called in the server's thread when the whole answer has been sent; may be NULL */
};
/* Makes the answer an error with this line, given without a line end. */
void wn_http_say(struct wn_http_answer *answer, int status, const char *line);
/* Opens a body that is written while it is sent (stream.h). NULL: out of memory; the answer then says so. */
struct wn_http_stream *wn_http_stream_open(const struct wn_http_request *request, struct wn_http_answer *answer);

struct wn_http_route {
  const char *method, *path, *type; /* method: "GET" includes HEAD. path: the whole path, or with "*" at the end its
                                       beginning. type: of the answer's body */
  size_t body_limit;                /* the most bytes of a request's body; 0: requests have none */
  void (*handle)(const struct wn_http_request *request, struct wn_http_answer *answer);
};

struct wn_http_options {
  const char *address;                /* IPv4 or IPv6; NULL: 127.0.0.1 */
  int port;                           /* 0: any free one */
  const struct wn_http_route *routes; /* [route_count], borrowed */
  int route_count;
  const char *always; /* a path that is answered even while every connection has a request; NULL: none */
  void *user;         /* for the handlers */
  int connections;    /* at the same time; 0: 64 */
  /* Time limits in seconds; 0: 10 for a head, 30 for a body, 120 for sending an answer. */
  double head_seconds, body_seconds, answer_seconds;
};
/* WN_ERR_IO: cannot listen on the address. */
wn_status wn_http_start(wn_context *ctx, const struct wn_http_options *options, struct wn_http **out);
int wn_http_port(const struct wn_http *http);
/* Cuts off streams and accepts no new requests: the first half of wn_http_stop, for servers that must stop their
 * writers in between. */
void wn_http_close(struct wn_http *http);
/* Cuts off streams and waits until their writers have ended them. NULL is allowed. */
void wn_http_stop(struct wn_http *http);

#endif
