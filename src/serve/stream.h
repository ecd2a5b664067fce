/* Bodies of HTTP answers that are written while they are sent. Private to src/serve. */
#ifndef WN_SERVE_STREAM_H
#define WN_SERVE_STREAM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include "winnow/context.h"

enum { WN_HTTP_STREAM_ROOM = 64 * 1024 };

struct MHD_Connection;
struct MHD_Response;
struct wn_http_stream;

/* All open streams of a server. */
struct wn_http_streams {
  pthread_mutex_t lock; /* also for every stream */
  pthread_cond_t none;
  struct wn_http_stream *first;
  bool closing;
};
void wn_http_streams_init(struct wn_http_streams *streams);
void wn_http_streams_close(struct wn_http_streams *streams); /* from now on every client counts as gone */
void wn_http_streams_wait(struct wn_http_streams *streams);  /* waits until the writers have ended them */
void wn_http_streams_clear(struct wn_http_streams *streams);

/* NULL: out of memory. The writer and the response hold the stream; it is freed with the last of them. */
struct wn_http_stream *wn_http_stream_create(struct wn_http_streams *streams, struct MHD_Connection *connection);
struct MHD_Response *wn_http_stream_response(struct wn_http_stream *stream); /* NULL: out of memory */
void wn_http_stream_drop(struct wn_http_stream *stream); /* called instead of making a response: nobody will read it */

/* Sets the status of an answer whose head waits (http.h), before its first byte; the default is 200. */
void wn_http_stream_set_status(struct wn_http_stream *stream, int status);
/* Called in the server's thread. True: there is nothing to send yet, and the connection is suspended until there is. */
bool wn_http_stream_wait(struct wn_http_stream *stream);
int wn_http_stream_status(struct wn_http_stream *stream);
/* Called by one thread, the writer, which never waits. Returns how many bytes there was room for; SIZE_MAX: the client
 * has gone, which is checked even with bytes 0, and only wn_http_stream_end is left to do. */
size_t wn_http_stream_offer(struct wn_http_stream *stream, const char *data, size_t bytes);
void wn_http_stream_end(struct wn_http_stream *stream); /* the writer's last call */
/* Has the client closed the connection? The server does not poll the socket of a suspended connection, so ask it. */
bool wn_http_socket_is_closed(int socket);

#endif
