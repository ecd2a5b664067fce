/* The HTTP server. A request is examined when its head has arrived, where most refusals are found. The body of a
 * refused request is read to its end, so that the client receives the answer, but not beyond HTTP_DISCARD.
 *
 * A request that is read by another thread (readers.h) belongs to that thread from http_hand_over until it resumes the
 * connection: the server's thread does not touch a suspended connection, not even when its client leaves. */
#include "serve/http.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "serve/connections.h"

enum {
  HTTP_CONNECTIONS = 64,
  HTTP_IDLE_SECONDS = 30, /* without any byte */
  HTTP_HEAD_SECONDS = 10,
  HTTP_BODY_SECONDS = 30,
  HTTP_ANSWER_SECONDS = 120,
  HTTP_HEAD = 32 * 1024,
  HTTP_DISCARD = 16 << 20, /* well above any route's limit */
  HTTP_BODIES = 64 << 20,  /* the most bytes of all larger bodies in memory at one time */
  HTTP_SMALL = 16 << 10    /* a body of so many bytes always has room: large ones do not keep small requests out */
};

struct wn_http {
  struct MHD_Daemon *daemon;
  struct wn_http_options options;
  struct wn_http_streams streams;
  struct wn_connections connections;
  struct wn_readers readers;
  size_t bodies; /* bytes of all larger bodies now; only the server's thread counts */
  bool loopback;
  char own[INET_ADDRSTRLEN]; /* the IPv4 address that the server listens on; "": it is no IPv4 address */
  int port;
};

/* State of one request, from its head to the end of its answer. */
struct http_exchange {
  struct wn_reading reading; /* first, so that it leads to the exchange */
  const struct wn_http_route *route;
  const char *origin; /* the Origin header, if the origin is one that `origins` names; NULL: no other page asks */
  bool head;          /* the answer has no body */
  bool last;          /* the connection ends with the answer */
  int refused;        /* the HTTP status of a refusal; 0: not refused */
  char *body;         /* [room] and a NUL */
  size_t bytes, room, declared, discarded; /* declared: Content-Length; 0: none */
  void (*sent)(void *user);
  int sent_status; /* of the answer that is being sent; 0: none */
  struct wn_http_request request;
  struct wn_http_answer answer; /* of the handler (`handled`), or of the refusal */
  bool handled;
};

const char *wn_http_query(const struct wn_http_request *request, const char *name) {
  return MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, name);
}

const char *wn_http_header(const struct wn_http_request *request, const char *name) {
  return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

void wn_http_say(struct wn_http_answer *answer, int status, const char *line) {
  wn_free(answer->text.data);
  answer->text = (struct wn_text){0};
  wn_text_add(&answer->text, "%s\n", line);
  answer->status = status;
  answer->type = "text/plain; charset=utf-8";
}

struct wn_http_stream *wn_http_stream_open(const struct wn_http_request *request, struct wn_http_answer *answer) {
  answer->stream = wn_http_stream_create(&request->http->streams, request->connection);
  if (!answer->stream) wn_http_say(answer, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory");
  return answer->stream;
}

/* ---- routes ---- */

/* A browser asks whether a page of another origin may send a request. */
static void http_answer_preflight(const struct wn_http_request *request, struct wn_http_answer *answer) {
  (void)request;
  answer->status = MHD_HTTP_NO_CONTENT;
  answer->fixed = "";
}
static const struct wn_http_route http_preflight = {
    .type = "text/plain; charset=utf-8", .open = true, .handle = http_answer_preflight};

/* Does the route serve the method? HEAD counts as GET; libmicrohttpd leaves out the body. */
static bool http_serves(const struct wn_http_route *route, const char *method) {
  return !strcmp(route->method, strcmp(method, "HEAD") != 0 ? method : "GET");
}

/* Does the path belong to the route? A route that ends in "*" has all paths that begin so. */
static bool http_leads(const struct wn_http_route *route, const char *path) {
  const size_t n = strlen(route->path) - 1;
  return route->path[n] == '*' ? !strncmp(route->path, path, n) && path[n] : !strcmp(route->path, path);
}

/* Finds the route, or the HTTP status of a refusal. */
static int http_find_route(const struct wn_http *http, const char *method, const char *path,
                           const struct wn_http_route **out) {
  int refused = MHD_HTTP_NOT_FOUND;
  *out = NULL;
  for (int i = 0; i < http->options.route_count; i++) {
    const struct wn_http_route *route = &http->options.routes[i];
    if (!http_leads(route, path)) continue;
    *out = route;
    if (http_serves(route, method)) return 0;
    refused = MHD_HTTP_METHOD_NOT_ALLOWED;
  }
  return refused;
}

/* Adds a header with the path's methods: "GET, HEAD, POST". */
static void http_add_allowed(const struct wn_http *http, const char *path, const char *name, struct MHD_Response *r) {
  char methods[100] = "";
  size_t n = 0;
  for (int i = 0; i < http->options.route_count && n < sizeof methods; i++) {
    const struct wn_http_route *route = &http->options.routes[i];
    if (http_leads(route, path))
      n += (size_t)snprintf(methods + n, sizeof methods - n, "%s%s%s", n ? ", " : "", route->method,
                            strcmp(route->method, "GET") != 0 ? "" : ", HEAD");
  }
  MHD_add_response_header(r, name, methods);
}

/* Does the Host header name this machine, with any port? Case does not matter, and names may end in a dot. */
static bool http_names_loopback(const struct wn_http *http, const char *host) {
  const char *const names[] = {"localhost", "127.0.0.1", "[::1]", http->own};
  for (size_t i = 0; host && i < sizeof names / sizeof *names; i++) {
    const size_t n = strlen(names[i]);
    if (n == 0 || strncasecmp(host, names[i], n) != 0) continue;
    const char *after = host + n + (host[n] == '.');
    if (*after == 0 || *after == ':') return true;
  }
  return false;
}

/* Is it an address, or a name that leads only here? Any other name may belong to somebody who makes it lead here. */
static bool http_names_itself(const struct wn_http *http, const char *host) {
  char name[256], own[256] = "";
  struct in6_addr address;
  const bool six = *host == '[';
  const size_t n = strcspn(host + six, six ? "]" : ":");
  if (n >= sizeof name) return false;
  memcpy(name, host + six, n);
  name[n] = 0;
  if (inet_pton(six ? AF_INET6 : AF_INET, name, &address) == 1) return true;
  gethostname(own, sizeof own - 1);
  return http_names_loopback(http, host) || !strcasecmp(name, own);
}

/* Does the list of origins, separated by commas, name this one? */
static bool http_lists(const char *list, const char *origin) {
  for (size_t n; list && *list; list += n + (list[n] == ',')) {
    n = strcspn(list, ",");
    if ((n == 1 && *list == '*') || (n == strlen(origin) && !strncasecmp(list, origin, n))) return true;
  }
  return false;
}

/* Browsers name the page that asks. Pages of the server's own may, and those that `origins` names. */
static bool http_admits_origin(const struct wn_http *http, const char *host, const char *origin, const char **other) {
  *other = NULL;
  if (!origin) return true;
  if (host && !strncasecmp(origin, "http://", 7) && !strcasecmp(origin + 7, host) && http_names_itself(http, host))
    return true;
  if (!http_lists(http->options.origins, origin)) return false;
  *other = origin;
  return true;
}

static const char *http_refusal(int status) {
  return status == MHD_HTTP_BAD_REQUEST           ? "the head does not say clearly where the request ends"
         : status == MHD_HTTP_FORBIDDEN           ? "ask for localhost"
         : status == MHD_HTTP_NOT_FOUND           ? "not here"
         : status == MHD_HTTP_METHOD_NOT_ALLOWED  ? "not by this method"
         : status == MHD_HTTP_CONTENT_TOO_LARGE   ? "the request's body is too large"
         : status == MHD_HTTP_SERVICE_UNAVAILABLE ? "busy"
                                                  : "out of memory";
}

/* ---- framing ---- */

/* libmicrohttpd takes the first of several Content-Length headers, prefers any Transfer-Encoding to it, and reads a
 * header whose name ends in a blank as another one. A program in front of this server may do otherwise, and then the
 * two see different requests. RFC 9112, sections 5 and 6: such heads are errors. */
struct http_framing {
  int lengths, codings, hosts, origins;
  bool chunked, bad;
};

static enum MHD_Result http_on_header(void *user, enum MHD_ValueKind kind, const char *name, const char *value) {
  struct http_framing *f = user;
  static const char length[] = MHD_HTTP_HEADER_CONTENT_LENGTH, coding[] = MHD_HTTP_HEADER_TRANSFER_ENCODING;
  (void)kind;
  const size_t n = strspn(name, "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");
  f->bad = f->bad || n == 0 || name[n];
  for (const unsigned char *c = (const unsigned char *)value; c && *c; c++)
    f->bad = f->bad || (*c < ' ' && *c != '\t') || *c == 0x7f;
  f->hosts += !strcasecmp(name, MHD_HTTP_HEADER_HOST);
  f->origins += !strcasecmp(name, MHD_HTTP_HEADER_ORIGIN);
  /* a longer name is one that a folded line was added to */
  f->lengths += !strncasecmp(name, length, sizeof length - 1);
  f->codings += !strncasecmp(name, coding, sizeof coding - 1);
  f->bad = f->bad || (n >= sizeof length && !strncasecmp(name, length, sizeof length - 1)) ||
           (n >= sizeof coding && !strncasecmp(name, coding, sizeof coding - 1));
  f->chunked = f->chunked || (!strcasecmp(name, coding) && value && !strcasecmp(value, "chunked"));
  return MHD_YES;
}

/* Is it clear where the request ends? *chunked: its body is sent in chunks. */
static bool http_is_framed(struct MHD_Connection *c, const char *version, bool *chunked) {
  struct http_framing f = {0};
  MHD_get_connection_values(c, MHD_HEADER_KIND, http_on_header, &f);
  *chunked = f.chunked;
  if (f.bad || f.hosts > 1 || f.origins > 1 || f.lengths > 1 || f.codings > 1) return false;
  return f.codings == 0 || (f.chunked && f.lengths == 0 && !strcmp(version, MHD_HTTP_VERSION_1_1));
}

/* ---- requests ---- */

static struct MHD_Response *http_response(struct wn_http_answer *a, bool head) {
  if (a->text.failed) { /* there may be no memory even for the message */
    wn_free(a->text.data);
    a->text = (struct wn_text){0};
    a->status = MHD_HTTP_INTERNAL_SERVER_ERROR;
  }
  if (a->stream && !head) return wn_http_stream_response(a->stream);
  if (a->stream) wn_http_stream_drop(a->stream);
  if (!a->text.data)
    return MHD_create_response_from_buffer(a->fixed_bytes, (void *)(uintptr_t)a->fixed, MHD_RESPMEM_PERSISTENT);
  struct MHD_Response *r = MHD_create_response_from_buffer_with_free_callback(a->text.bytes, a->text.data, wn_free);
  if (!r) wn_free(a->text.data);
  return r;
}

/* The entry of a request's connection; NULL: there is none. */
static struct wn_connection *http_connection(struct MHD_Connection *c) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  return info ? info->socket_context : NULL;
}

/* Lets a page of another origin, which `origins` names, read the answer. */
static void http_add_origin(const struct wn_http *http, struct MHD_Connection *c, const char *path,
                            const struct http_exchange *x, struct MHD_Response *r) {
  MHD_add_response_header(r, "Access-Control-Allow-Origin", x->origin);
  MHD_add_response_header(r, "Vary", "Origin");
  if (x->route != &http_preflight) return;
  const char *wanted = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Access-Control-Request-Headers");
  http_add_allowed(http, path, "Access-Control-Allow-Methods", r);
  if (wanted) MHD_add_response_header(r, "Access-Control-Allow-Headers", wanted);
  MHD_add_response_header(r, "Access-Control-Max-Age", "600");
}

/* Sends the exchange's answer. */
static enum MHD_Result http_send(struct wn_http *http, struct MHD_Connection *c, const char *path,
                                 struct http_exchange *x) {
  struct wn_http_answer *a = &x->answer;
  const bool streams = a->stream && !a->waits && !x->head;
  struct MHD_Response *r = http_response(a, x->head);
  a->stream = NULL;
  a->text = (struct wn_text){0};
  if (!r) return MHD_NO;
  MHD_add_response_header(r, "Content-Type", a->type);
  MHD_add_response_header(r, "Cache-Control", "no-store");
  MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
  MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
  if (a->content_policy) MHD_add_response_header(r, "Content-Security-Policy", a->content_policy);
  char seconds[16];
  snprintf(seconds, sizeof seconds, "%d", a->retry);
  if (a->retry > 0) MHD_add_response_header(r, "Retry-After", seconds);
  if (a->status == MHD_HTTP_METHOD_NOT_ALLOWED) http_add_allowed(http, path, "Allow", r);
  if (x->last) MHD_add_response_header(r, "Connection", "close");
  if (x->origin) http_add_origin(http, c, path, x, r);
  wn_connections_enter(&http->connections, http_connection(c), streams ? WN_CONNECTION_STREAM : WN_CONNECTION_ANSWER);
  const enum MHD_Result result = MHD_queue_response(c, (unsigned)a->status, r);
  MHD_destroy_response(r);
  x->sent_status = a->status;
  return result;
}

static enum MHD_Result http_refuse(struct wn_http *http, struct MHD_Connection *c, const char *path,
                                   struct http_exchange *x) {
  if (!x->answer.text.data) {
    wn_http_say(&x->answer, x->refused, http_refusal(x->refused));
    x->answer.retry = x->refused == MHD_HTTP_SERVICE_UNAVAILABLE;
  }
  return http_send(http, c, path, x);
}

/* What is wrong with the head, or 0. */
static int http_judge(struct wn_http *http, struct http_exchange *x) {
  const struct wn_http_request *request = &x->request;
  const char *host = wn_http_header(request, MHD_HTTP_HEADER_HOST);
  const int refused = http_find_route(http, request->method, request->path, &x->route);
  if (http->loopback && !http_names_loopback(http, host)) return MHD_HTTP_FORBIDDEN;
  if (!http_admits_origin(http, host, wn_http_header(request, MHD_HTTP_HEADER_ORIGIN), &x->origin)) {
    wn_http_say(&x->answer, MHD_HTTP_FORBIDDEN, "pages of this origin may not ask");
    return MHD_HTTP_FORBIDDEN;
  }
  if (refused == MHD_HTTP_METHOD_NOT_ALLOWED && x->origin && !strcmp(request->method, MHD_HTTP_METHOD_OPTIONS))
    x->route = &http_preflight;
  else if (refused)
    return refused;
  if (http->options.admit && !x->route->open && !http->options.admit(request, &x->answer)) return x->answer.status;
  if (x->declared > x->route->body_limit) return MHD_HTTP_CONTENT_TOO_LARGE;
  const char *always = http->options.always;
  const bool counts = !always || strcmp(request->path, always) != 0;
  return counts && wn_connections_busy(&http->connections) ? MHD_HTTP_SERVICE_UNAVAILABLE : 0;
}

/* Handles the head: finds the route, and decides whether the body is accepted. */
static enum MHD_Result http_begin(struct wn_http *http, struct MHD_Connection *c, const char *path, const char *method,
                                  const char *version, struct http_exchange *x) {
  const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
  x->head = !strcmp(method, MHD_HTTP_METHOD_HEAD);
  x->declared = length ? strtoull(length, NULL, 10) : 0;
  x->request = (struct wn_http_request){.method = method,
                                        .path = path,
                                        .body = "",
                                        .user = http->options.user,
                                        .arrived = wn_seconds_now(),
                                        .http = http,
                                        .connection = c,
                                        .access = wn_access_open(http->options.log, method, path)};
  /* libmicrohttpd also ends the lines between chunks at a newline alone: what follows the last chunk is not read. */
  const bool framed = http_is_framed(c, version, &x->last);
  x->refused = framed ? http_judge(http, x) : MHD_HTTP_BAD_REQUEST;
  wn_connections_enter(&http->connections, http_connection(c), WN_CONNECTION_BODY);
  /* An answer before the body closes the connection. */
  return !framed || (x->refused && x->declared > HTTP_DISCARD) ? http_refuse(http, c, path, x) : MHD_YES;
}

/* The bytes of a body that count for HTTP_BODIES. */
static size_t http_counted(size_t room) {
  return room > HTTP_SMALL ? room : 0;
}

/* Takes a piece of the body. MHD_NO: too much has been discarded already. */
static enum MHD_Result http_take(struct wn_http *http, struct http_exchange *x, const char *data, size_t bytes) {
  if (!x->refused && bytes > x->route->body_limit - x->bytes) x->refused = MHD_HTTP_CONTENT_TOO_LARGE;
  if (!x->refused && bytes > x->room - x->bytes) {
    size_t room = 2 * (x->bytes + bytes);
    void *memory;
    if (room > x->route->body_limit) room = x->route->body_limit;
    if (x->declared && room > x->declared) room = x->declared;
    if (http_counted(room) - http_counted(x->room) > HTTP_BODIES - http->bodies) {
      x->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
    } else if (wn_alloc(NULL, "a request's body", room + 1, &memory) != WN_OK) {
      x->refused = MHD_HTTP_INTERNAL_SERVER_ERROR;
    } else {
      if (x->bytes) memcpy(memory, x->body, x->bytes);
      wn_free(x->body);
      http->bodies += http_counted(room) - http_counted(x->room);
      x->body = memory;
      x->room = room;
    }
  }
  if (x->refused) {
    x->discarded += bytes;
    return x->discarded > HTTP_DISCARD ? MHD_NO : MHD_YES;
  }
  memcpy(x->body + x->bytes, data, bytes);
  x->body[x->bytes += bytes] = 0;
  return MHD_YES;
}

static void http_drop_body(struct wn_http *http, struct http_exchange *x) {
  http->bodies -= http_counted(x->room);
  wn_free(x->body);
  x->body = NULL;
  x->bytes = x->room = 0;
}

/* Sends what the handler has answered, if its status is known by now; else this is called again. */
static enum MHD_Result http_finish(struct wn_http *http, struct MHD_Connection *c, const char *path,
                                   struct http_exchange *x) {
  struct wn_http_answer *a = &x->answer;
  http_drop_body(http, x); /* others may need the memory while this request is answered */
  x->sent = a->sent;
  if (a->stream && a->waits && !x->head) {
    if (wn_http_stream_wait(a->stream)) return MHD_YES;
    a->status = wn_http_stream_status(a->stream);
  }
  return http_send(http, c, path, x);
}

/* Runs the handler. True: the request waits, and is another thread's. */
static bool http_enter(struct http_exchange *x) {
  const struct wn_http_options *o = &x->request.http->options;
  const enum wn_http_entry entry = x->route->enters && o->enter ? o->enter(&x->request, &x->answer) : WN_HTTP_GOES_ON;
  if (entry == WN_HTTP_GOES_ON) x->route->handle(&x->request, &x->answer);
  return entry == WN_HTTP_WAITS;
}

/* Runs the handler in a thread of readers.h. */
static void http_read(struct wn_reading *reading, int reader, bool stop) {
  struct http_exchange *x = (struct http_exchange *)(void *)reading;
  struct MHD_Connection *c = x->request.connection;
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
  const struct wn_http_options *o = &x->request.http->options;
  x->request.thread = reader;
  if (stop || (info && wn_http_socket_is_closed(info->connect_fd)))
    x->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
  else if (http_enter(x))
    return; /* the exchange may be gone */
  if (x->request.held) o->leave(&x->request);
  MHD_resume_connection(c); /* the exchange may be gone after this */
}

void wn_http_again(struct wn_http_request *request) {
  struct http_exchange *x = (struct http_exchange *)(void *)((char *)request - offsetof(struct http_exchange, request));
  if (wn_readers_add(&request->http->readers, &x->reading, x->bytes)) return;
  x->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
  if (request->held) request->http->options.leave(request);
  MHD_resume_connection(request->connection);
}

/* Gives the request to a thread of readers.h, and gets it back when the connection is resumed. */
static enum MHD_Result http_hand_over(struct wn_http *http, struct MHD_Connection *c, struct http_exchange *x) {
  x->reading.read = http_read;
  MHD_suspend_connection(c);
  if (wn_readers_add(&http->readers, &x->reading, x->bytes)) return MHD_YES;
  x->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
  MHD_resume_connection(c);
  return MHD_YES;
}

static enum MHD_Result http_on_request(void *user, struct MHD_Connection *c, const char *path, const char *method,
                                       const char *version, const char *upload, size_t *upload_bytes, void **state) {
  struct wn_http *http = user;
  struct http_exchange *x = *state;
  if (!x) {
    if (WN_ALLOC(NULL, "a request", 1, &x) != WN_OK) return MHD_NO;
    *state = x;
    return http_begin(http, c, path, method, version, x);
  }
  if (*upload_bytes > 0) {
    const size_t bytes = *upload_bytes;
    *upload_bytes = 0;
    return http_take(http, x, upload, bytes);
  }
  if (x->refused) return http_refuse(http, c, path, x);
  if (x->handled) return http_finish(http, c, path, x);
  x->handled = true;
  x->request.arrived = wn_seconds_now();
  x->answer = (struct wn_http_answer){.status = MHD_HTTP_OK, .type = x->route->type};
  if (x->body) x->request.body = x->body, x->request.body_bytes = x->bytes;
  wn_connections_enter(&http->connections, http_connection(c), WN_CONNECTION_STREAM); /* the client has done its part */
  if (x->route->reads) return http_hand_over(http, c, x);
  x->route->handle(&x->request, &x->answer);
  return http_finish(http, c, path, x);
}

static void http_on_completed(void *user, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode how) {
  struct wn_http *http = user;
  struct http_exchange *x = *state;
  wn_connections_enter(&http->connections, http_connection(c), WN_CONNECTION_HEAD);
  if (!x) return;
  if (x->answer.stream) wn_http_stream_drop(x->answer.stream); /* the client left before the head was sent */
  wn_free(x->answer.text.data);
  if (x->sent && how == MHD_REQUEST_TERMINATED_COMPLETED_OK) x->sent(http->options.user);
  http_drop_body(http, x);
  wn_access_close(x->request.access, x->sent_status, x->request.arrived,
                  how != MHD_REQUEST_TERMINATED_COMPLETED_OK && how != MHD_REQUEST_TERMINATED_DAEMON_SHUTDOWN);
  wn_free(x);
  *state = NULL;
}

static void http_on_connection(void *user, struct MHD_Connection *c, void **state,
                               enum MHD_ConnectionNotificationCode what) {
  struct wn_http *http = user;
  if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
    wn_connections_close(&http->connections, *state);
    *state = NULL;
    return;
  }
  const union MHD_ConnectionInfo *socket = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD),
                                 *address = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  *state = wn_connections_open(&http->connections, socket->connect_fd, address ? address->client_addr : NULL);
}

/* ---- start and stop ---- */

/* Sets time limits and the limit of connections, and starts the thread that enforces them. */
static wn_status http_watch(wn_context *ctx, struct wn_http *http) {
  const struct wn_http_options *o = &http->options;
  struct wn_connections *all = &http->connections;
  all->limit = o->connections ? o->connections : HTTP_CONNECTIONS;
  all->seconds[WN_CONNECTION_HEAD] = o->head_seconds > 0 ? o->head_seconds : HTTP_HEAD_SECONDS;
  all->seconds[WN_CONNECTION_BODY] = o->body_seconds > 0 ? o->body_seconds : HTTP_BODY_SECONDS;
  all->seconds[WN_CONNECTION_ANSWER] = o->answer_seconds > 0 ? o->answer_seconds : HTTP_ANSWER_SECONDS;
  return wn_connections_start(ctx, all);
}

static wn_status http_listen(wn_context *ctx, struct wn_http *http) {
  const struct wn_http_options *o = &http->options;
  const char *address = o->address ? o->address : "127.0.0.1";
  struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)o->port)};
  struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)o->port)};
  const bool is_four = inet_pton(AF_INET, address, &four.sin_addr) == 1;
  if (!is_four && inet_pton(AF_INET6, address, &six.sin6_addr) != 1)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "\"%s\" is not an IP address to listen on", address);
  if (o->port < 0 || o->port > 65535) return wn_fail(ctx, WN_ERR_ARGUMENT, "port %d; expected 0 to 65535", o->port);
  http->loopback = is_four ? ntohl(four.sin_addr.s_addr) >> 24 == 127 : IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
  if (is_four) inet_ntop(AF_INET, &four.sin_addr, http->own, sizeof http->own);
  const struct sockaddr *at =
      is_four ? (const struct sockaddr *)(const void *)&four : (const struct sockaddr *)(const void *)&six;
  /* Signals are for the program's own threads. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  http->daemon = MHD_start_daemon(
      MHD_USE_POLL | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME | (is_four ? 0 : MHD_USE_IPv6), 0, NULL,
      NULL, http_on_request, http, MHD_OPTION_SOCK_ADDR, at, MHD_OPTION_CONNECTION_LIMIT,
      (unsigned)(2 * http->connections.limit + 64), /* room for the reserve, and for connections that are being cut */
      MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)HTTP_IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_HEAD,
      MHD_OPTION_STRICT_FOR_CLIENT, 1, /* a Host, and no blanks in a path */
      MHD_OPTION_NOTIFY_COMPLETED, http_on_completed, http, MHD_OPTION_NOTIFY_CONNECTION, http_on_connection, http,
      MHD_OPTION_END);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!http->daemon)
    return wn_fail(ctx, WN_ERR_IO, "cannot listen on %s port %d: taken, or not allowed", address, o->port);
  const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT);
  http->port = info ? info->port : o->port;
  return WN_OK;
}

wn_status wn_http_start(wn_context *ctx, const struct wn_http_options *options, struct wn_http **out) {
  struct wn_http *http;
  *out = NULL;
  WN_TRY(WN_ALLOC(ctx, "a server", 1, &http));
  http->options = *options;
  wn_http_streams_init(&http->streams);
  wn_status status = http_watch(ctx, http);
  bool reads = false;
  for (int i = 0; i < options->route_count; i++) reads = reads || options->routes[i].reads;
  if (status == WN_OK && reads) status = wn_readers_start(ctx, &http->readers);
  if (status == WN_OK) status = http_listen(ctx, http);
  if (status != WN_OK) {
    wn_http_stop(http);
    return status;
  }
  *out = http;
  return WN_OK;
}

int wn_http_port(const struct wn_http *http) {
  return http->port;
}

void wn_http_close(struct wn_http *http) {
  if (http->daemon) {
    const MHD_socket listening = MHD_quiesce_daemon(http->daemon);
    if (listening != MHD_INVALID_SOCKET) close(listening);
  }
  wn_http_streams_close(&http->streams);
  wn_readers_close(&http->readers);
}

void wn_http_stop(struct wn_http *http) {
  if (!http) return;
  wn_http_streams_close(&http->streams);
  wn_readers_stop(&http->readers); /* resumes every connection that waits for one: none may be suspended below */
  if (http->daemon) MHD_stop_daemon(http->daemon);
  wn_connections_stop(&http->connections);
  wn_http_streams_wait(&http->streams);
  wn_http_streams_clear(&http->streams);
  wn_free(http);
}
