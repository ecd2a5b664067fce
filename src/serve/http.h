/* An HTTP server with a table of routes, over libmicrohttpd. Private to src/serve.
 *
 * One thread serves all connections. It runs the handlers that answer at once; those of routes with `reads` run in
 * threads of their own (readers.h), while the connection is suspended. A handler may open a stream that another thread
 * writes. Refusals have one line: 400 for a head whose end two programs could see in different places; 403 for the
 * requests of foreign pages, and on a loopback address for those that do not name this machine; 404, 405, 413, 503.
 * All but the last are found in the head, before a body takes memory. No encryption, no users. Slow clients do not keep
 * others out (connections.h). */
#ifndef WN_SERVE_HTTP_H
#define WN_SERVE_HTTP_H

#include "base/text.h"
#include "serve/access.h"
#include "serve/readers.h"
#include "serve/stream.h"

enum { WN_HTTP_THREADS = 1 + WN_READERS };

struct MHD_Connection;

/* What `enter` (below) has done with a request. */
enum wn_http_entry {
  WN_HTTP_GOES_ON,  /* the handler may run */
  WN_HTTP_ANSWERED, /* the answer has been made */
  WN_HTTP_WAITS     /* until wn_http_again; the request belongs to another thread now */
};

struct wn_http_request {
  const char *method, *path;
  const char *body; /* [body_bytes] and a NUL; like all fields borrowed until the handler returns */
  size_t body_bytes;
  void *user;               /* of wn_http_options */
  double arrived;           /* wn_seconds_now when its last byte had come; before that, its head */
  struct wn_access *access; /* its line in the access log; NULL: none */
  struct wn_http *http;
  struct MHD_Connection *connection;
  void *held;                   /* what `enter` got for it, until `leave` */
  struct wn_http_request *next; /* for whoever it waits with */
  int thread;                   /* that runs the handler: 0: the server's; else one of WN_HTTP_THREADS - 1 others */
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

/* Begins a request that waits again, in a thread as before; it may be over when this returns. */
void wn_http_again(struct wn_http_request *request);

struct wn_http_route {
  const char *method, *path, *type; /* method: "GET" includes HEAD. path: the whole path, or with "*" at the end its
                                       beginning. type: of the answer's body */
  size_t body_limit;                /* the most bytes of a request's body; 0: requests have none */
  bool reads;                       /* `handle` may take long, in a thread of its own */
  bool open;                        /* needs no admission */
  bool enters;                      /* `enter` is called first; only with `reads` */
  void (*handle)(const struct wn_http_request *request, struct wn_http_answer *answer);
};

struct wn_http_options {
  const char *address;                /* IPv4 or IPv6; NULL: 127.0.0.1 */
  int port;                           /* 0: any free one */
  const struct wn_http_route *routes; /* [route_count], borrowed */
  int route_count;
  const char *always; /* a path that is answered even while every connection has a request; NULL: none */
  void *user;         /* for the handlers */
  /* Called with the head of each request for a route that is not open; NULL: all are admitted. False: refused with the
   * answer that it made. */
  bool (*admit)(const struct wn_http_request *request, struct wn_http_answer *answer);
  /* Called in the thread of a handler before it, and after a request that has something. NULL: neither. */
  enum wn_http_entry (*enter)(struct wn_http_request *request, struct wn_http_answer *answer);
  void (*leave)(struct wn_http_request *request);
  /* Comma-separated origins whose pages may ask, beside the server's own; "*": all; NULL: none. Borrowed. */
  const char *origins;
  struct wn_access_log *log; /* has a line for each request; NULL: there is none */
  int connections;           /* at the same time; 0: 64 */
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
