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

/* Of a server: all that are open. */
struct wn_http_streams {
  pthread_mutex_t lock; /* of every stream too */
  pthread_cond_t none;
  struct wn_http_stream *first;
  bool closing;
};
void wn_http_streams_init(struct wn_http_streams *streams);
void wn_http_streams_close(struct wn_http_streams *streams); /* every client is gone from now on */
void wn_http_streams_wait(struct wn_http_streams *streams);  /* until the writers have ended them */
void wn_http_streams_clear(struct wn_http_streams *streams);

/* NULL: out of memory. The writer and the response hold it from now on; it goes with the last of them. */
struct wn_http_stream *wn_http_stream_create(struct wn_http_streams *streams, struct MHD_Connection *connection);
struct MHD_Response *wn_http_stream_response(struct wn_http_stream *stream); /* NULL: out of memory */
void wn_http_stream_drop(struct wn_http_stream *stream); /* instead of a response: nobody will read it */

/* By one thread, the writer; by the handler that opened it at most WN_HTTP_STREAM_ROOM bytes, for nobody reads while it
 * runs. Waits while the client is slow. False: the client has gone, all that is left to do is to
 * end. */
bool wn_http_stream_write(struct wn_http_stream *stream, const char *data, size_t bytes);
/* A server-sent event with this data, whose lines are told apart; name may be NULL. False: as above. */
bool wn_http_stream_event(struct wn_http_stream *stream, const char *name, const char *data);
/* The status of an answer whose head waits (http.h), before its first byte; else 200. */
void wn_http_stream_set_status(struct wn_http_stream *stream, int status);
/* In the server's thread. True: there is nothing to send yet, and the connection is suspended until there is. */
bool wn_http_stream_wait(struct wn_http_stream *stream);
int wn_http_stream_status(struct wn_http_stream *stream);
/* Without waiting: what there is room for now; SIZE_MAX: the client has gone, which is looked for even where nothing is
 * to be sent (bytes 0). */
size_t wn_http_stream_offer(struct wn_http_stream *stream, const char *data, size_t bytes);
void wn_http_stream_end(struct wn_http_stream *stream); /* the last call: the stream is no longer the writer's */

#endif
