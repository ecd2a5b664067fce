/* The HTTP server. A request is examined twice: when its head has arrived, where most refusals are found, and when its
 * body has. The body of a refused request is read to its end, so that the client receives the answer, but not beyond
 * HTTP_DISCARD. */
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
  HTTP_BODIES = 64 << 20   /* the most bytes of all bodies in memory at one time */
};

struct wn_http {
  struct MHD_Daemon *daemon;
  struct wn_http_options options;
  struct wn_http_streams streams;
  struct wn_connections connections;
  size_t bodies; /* bytes of all bodies now; only the server's thread counts */
  bool loopback;
  char own[INET_ADDRSTRLEN]; /* the IPv4 address that the server listens on; "": it is no IPv4 address */
  int port;
};

/* State of one request, from its head to the end of its answer. */
struct http_exchange {
  const struct wn_http_route *route;
  bool head;   /* the answer has no body */
  int refused; /* the HTTP status of a refusal; 0: not refused */
  char *body;  /* [room] and a NUL */
  size_t bytes, room, discarded;
  void (*sent)(void *user);
  struct wn_http_answer waiting; /* an answer whose head waits for its stream */
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

/* Adds the Allow header with the path's methods: "GET, HEAD, POST". */
static void http_add_allowed(const struct wn_http *http, const char *path, struct MHD_Response *r) {
  char methods[100] = "";
  size_t n = 0;
  for (int i = 0; i < http->options.route_count && n < sizeof methods; i++) {
    const struct wn_http_route *route = &http->options.routes[i];
    if (http_leads(route, path))
      n += (size_t)snprintf(methods + n, sizeof methods - n, "%s%s%s", n ? ", " : "", route->method,
                            strcmp(route->method, "GET") != 0 ? "" : ", HEAD");
  }
  MHD_add_response_header(r, "Allow", methods);
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

static const char *http_refusal(int status) {
  return status == MHD_HTTP_FORBIDDEN             ? "ask for localhost"
         : status == MHD_HTTP_NOT_FOUND           ? "not here"
         : status == MHD_HTTP_METHOD_NOT_ALLOWED  ? "not by this method"
         : status == MHD_HTTP_CONTENT_TOO_LARGE   ? "the request's body is too large"
         : status == MHD_HTTP_SERVICE_UNAVAILABLE ? "busy"
                                                  : "out of memory";
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
  const char *body = a->text.data ? a->text.data : a->fixed;
  const size_t bytes = a->text.data ? a->text.bytes : a->fixed_bytes;
  struct MHD_Response *r = MHD_create_response_from_buffer(
      bytes, (void *)(uintptr_t)body, a->text.data ? MHD_RESPMEM_MUST_COPY : MHD_RESPMEM_PERSISTENT);
  wn_free(a->text.data);
  return r;
}

/* The entry of a request's connection; NULL: there is none. */
static struct wn_connection *http_connection(struct MHD_Connection *c) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  return info ? info->socket_context : NULL;
}

static enum MHD_Result http_send(struct wn_http *http, struct MHD_Connection *c, const char *path,
                                 const struct http_exchange *x, struct wn_http_answer *a) {
  struct MHD_Response *r = http_response(a, x->head);
  if (!r) return MHD_NO;
  MHD_add_response_header(r, "Content-Type", a->type);
  MHD_add_response_header(r, "Cache-Control", "no-store");
  MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
  MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
  if (a->content_policy) MHD_add_response_header(r, "Content-Security-Policy", a->content_policy);
  char seconds[16];
  snprintf(seconds, sizeof seconds, "%d", a->retry);
  if (a->retry > 0) MHD_add_response_header(r, "Retry-After", seconds);
  if (a->status == MHD_HTTP_METHOD_NOT_ALLOWED) http_add_allowed(http, path, r);
  wn_connections_enter(&http->connections, http_connection(c),
                       a->stream && !a->waits && !x->head ? WN_CONNECTION_STREAM : WN_CONNECTION_ANSWER);
  const enum MHD_Result result = MHD_queue_response(c, (unsigned)a->status, r);
  MHD_destroy_response(r);
  return result;
}

static enum MHD_Result http_refuse(struct wn_http *http, struct MHD_Connection *c, const char *path,
                                   const struct http_exchange *x) {
  struct wn_http_answer answer = {.retry = x->refused == MHD_HTTP_SERVICE_UNAVAILABLE};
  wn_http_say(&answer, x->refused, http_refusal(x->refused));
  return http_send(http, c, path, x, &answer);
}

/* Handles the head: finds the route, and decides whether the body is accepted. */
static enum MHD_Result http_begin(struct wn_http *http, struct MHD_Connection *c, const char *path, const char *method,
                                  struct http_exchange *x) {
  const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
  const unsigned long long bytes = length ? strtoull(length, NULL, 10) : 0;
  x->head = !strcmp(method, MHD_HTTP_METHOD_HEAD);
  x->refused = http_find_route(http, method, path, &x->route);
  const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
  if (http->loopback && !http_names_loopback(http, host)) x->refused = MHD_HTTP_FORBIDDEN;
  if (!x->refused && bytes > x->route->body_limit) x->refused = MHD_HTTP_CONTENT_TOO_LARGE;
  const char *always = http->options.always;
  if (!x->refused && (!always || strcmp(path, always) != 0) && wn_connections_busy(&http->connections))
    x->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
  wn_connections_enter(&http->connections, http_connection(c), WN_CONNECTION_BODY);
  return x->refused && bytes > HTTP_DISCARD ? http_refuse(http, c, path, x) : MHD_YES;
}

/* Takes a piece of the body. MHD_NO: too much has been discarded already. */
static enum MHD_Result http_take(struct wn_http *http, struct http_exchange *x, const char *data, size_t bytes) {
  if (!x->refused && bytes > x->route->body_limit - x->bytes) x->refused = MHD_HTTP_CONTENT_TOO_LARGE;
  if (!x->refused && bytes > x->room - x->bytes) {
    size_t room = 2 * (x->bytes + bytes);
    void *memory;
    if (room > x->route->body_limit) room = x->route->body_limit;
    if (room - x->room > HTTP_BODIES - http->bodies) {
      x->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
    } else if (wn_alloc(NULL, "a request's body", room + 1, &memory) != WN_OK) {
      x->refused = MHD_HTTP_INTERNAL_SERVER_ERROR;
    } else {
      if (x->bytes) memcpy(memory, x->body, x->bytes);
      wn_free(x->body);
      http->bodies += room - x->room;
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

/* Sends the head if its status is known by now; else this is called again. */
static enum MHD_Result http_send_waiting(struct wn_http *http, struct MHD_Connection *c, const char *path,
                                         struct http_exchange *x) {
  struct wn_http_answer answer = x->waiting;
  if (wn_http_stream_wait(answer.stream)) return MHD_YES;
  x->waiting.stream = NULL;
  answer.status = wn_http_stream_status(answer.stream);
  return http_send(http, c, path, x, &answer);
}

static void http_drop_body(struct wn_http *http, struct http_exchange *x) {
  http->bodies -= x->room;
  wn_free(x->body);
  x->body = NULL;
  x->bytes = x->room = 0;
}

static enum MHD_Result http_on_request(void *user, struct MHD_Connection *c, const char *path, const char *method,
                                       const char *version, const char *upload, size_t *upload_bytes, void **state) {
  struct wn_http *http = user;
  struct http_exchange *x = *state;
  (void)version;
  if (!x) {
    void *memory;
    if (wn_alloc(NULL, "a request", sizeof *x, &memory) != WN_OK) return MHD_NO;
    *state = x = memory;
    return http_begin(http, c, path, method, x);
  }
  if (*upload_bytes > 0) {
    const size_t bytes = *upload_bytes;
    *upload_bytes = 0;
    return http_take(http, x, upload, bytes);
  }
  if (x->refused) return http_refuse(http, c, path, x);
  if (x->waiting.stream) return http_send_waiting(http, c, path, x);
  const struct wn_http_request request = {.method = method,
                                          .path = path,
                                          .body = x->body ? x->body : "",
                                          .body_bytes = x->bytes,
                                          .user = http->options.user,
                                          .http = http,
                                          .connection = c};
  struct wn_http_answer answer = {.status = MHD_HTTP_OK, .type = x->route->type};
  x->route->handle(&request, &answer);
  http_drop_body(http, x); /* others may need the memory while this request is answered */
  x->sent = answer.sent;
  if (!answer.stream || !answer.waits || x->head) return http_send(http, c, path, x, &answer);
  x->waiting = answer;
  wn_connections_enter(&http->connections, http_connection(c), WN_CONNECTION_STREAM);
  return http_send_waiting(http, c, path, x);
}

static void http_on_completed(void *user, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode how) {
  struct wn_http *http = user;
  struct http_exchange *x = *state;
  wn_connections_enter(&http->connections, http_connection(c), WN_CONNECTION_HEAD);
  if (!x) return;
  if (x->waiting.stream) wn_http_stream_drop(x->waiting.stream); /* the client left before the head was sent */
  if (x->sent && how == MHD_REQUEST_TERMINATED_COMPLETED_OK) x->sent(http->options.user);
  http_drop_body(http, x);
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
  void *memory;
  *out = NULL;
  WN_TRY(wn_alloc(ctx, "a server", sizeof **out, &memory));
  struct wn_http *http = memory;
  http->options = *options;
  wn_http_streams_init(&http->streams);
  wn_status status = http_watch(ctx, http);
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
}

void wn_http_stop(struct wn_http *http) {
  if (!http) return;
  wn_http_streams_close(&http->streams);
  if (http->daemon) MHD_stop_daemon(http->daemon);
  wn_connections_stop(&http->connections);
  wn_http_streams_wait(&http->streams);
  wn_http_streams_clear(&http->streams);
  wn_free(http);
}
