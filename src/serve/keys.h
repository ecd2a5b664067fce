/* The keys that requests must have one of: a text with a key on each line, which may be replaced while the server runs.
 * Private to src/serve.
 *
 * Empty lines and lines that begin with "#" are left out. What follows " #" in a line is the key's label, which stands
 * for the key in the access log; without one it is "line 3". */
#ifndef WN_SERVE_KEYS_H
#define WN_SERVE_KEYS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include "winnow/context.h"

enum { WN_KEYS = 1024, WN_KEY_BYTES = 256, WN_KEY_LABEL = 64 };

struct wn_key {
  char key[WN_KEY_BYTES + 1], label[WN_KEY_LABEL];
  size_t bytes;
};
struct wn_keys {
  pthread_mutex_t lock; /* protects the fields below */
  struct wn_key *list;  /* [count]; NULL: no key is needed */
  int count;
};
void wn_keys_open(struct wn_keys *keys);
void wn_keys_close(struct wn_keys *keys);
/* Takes the keys of a text in place of those that there are; after an error these stay. Errors name a line, and never a
 * key. */
wn_status wn_keys_set(wn_context *ctx, struct wn_keys *keys, const char *text);
/* Is a key needed, and has this header (NULL: there is none) one? Sets the key's label; "": none is needed. How long it
 * takes does not say how much of a key is right. */
bool wn_keys_admit(struct wn_keys *keys, const char *authorization, char label[WN_KEY_LABEL]);

#endif
