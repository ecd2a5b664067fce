/* Responses that are kept, so that later requests of /v1/responses go on from them: bounded in number and bytes, the
 * least recently used goes first. For all threads. Private to src/serve. */
#ifndef WN_SERVE_KEPT_H
#define WN_SERVE_KEPT_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WN_KEPT_RESPONSES = 1024, WN_KEPT_BYTES = 64 << 20, WN_KEPT_ID = 48 };

struct wn_kept_one {
  char id[WN_KEPT_ID];
  char *turns, *response; /* JSON: the messages up to and with its own; the response itself */
};
struct wn_kept {
  pthread_mutex_t lock;
  struct wn_kept_one one[WN_KEPT_RESPONSES]; /* the least recently used first */
  int count;
  size_t bytes;
};
void wn_kept_open(struct wn_kept *kept);
void wn_kept_close(struct wn_kept *kept);

/* Keeps texts of both, unless they are too large. */
void wn_kept_add(struct wn_kept *kept, const char *id, const json_t *turns, const json_t *response);
/* New references; NULL: not kept (any more). */
json_t *wn_kept_turns(struct wn_kept *kept, const char *id);
json_t *wn_kept_response(struct wn_kept *kept, const char *id);
bool wn_kept_drop(struct wn_kept *kept, const char *id); /* false: there is none */

#endif
