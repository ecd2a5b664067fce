/* Kept responses, as texts: values of JSON take many times as much, and belong to one thread. */
#include "serve/kept.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void wn_kept_open(struct wn_kept *k) {
  pthread_mutex_init(&k->lock, NULL);
}

static size_t kept_size(const struct wn_kept_one *one) {
  return strlen(one->turns) + strlen(one->response);
}

static void kept_remove(struct wn_kept *k, int at) {
  k->bytes -= kept_size(&k->one[at]);
  free(k->one[at].turns);
  free(k->one[at].response);
  memmove(&k->one[at], &k->one[at + 1], (size_t)(--k->count - at) * sizeof *k->one);
}

void wn_kept_close(struct wn_kept *k) {
  while (k->count > 0) kept_remove(k, k->count - 1);
  pthread_mutex_destroy(&k->lock);
}

void wn_kept_add(struct wn_kept *k, const char *id, const json_t *turns, const json_t *response) {
  struct wn_kept_one one = {.turns = json_dumps(turns, JSON_COMPACT),
                            .response = json_dumps(response, JSON_COMPACT | JSON_REAL_PRECISION(9))};
  snprintf(one.id, sizeof one.id, "%s", id);
  const size_t bytes = one.turns && one.response ? kept_size(&one) : SIZE_MAX;
  if (bytes > WN_KEPT_BYTES) {
    free(one.turns);
    free(one.response);
    return;
  }
  pthread_mutex_lock(&k->lock);
  while (k->count == WN_KEPT_RESPONSES || k->bytes + bytes > WN_KEPT_BYTES) kept_remove(k, 0);
  k->one[k->count++] = one;
  k->bytes += bytes;
  pthread_mutex_unlock(&k->lock);
}

/* The place of a response, which becomes the most recently used; -1: it is not kept. Called under the lock. */
static int kept_find(struct wn_kept *k, const char *id) {
  int at = k->count - 1;
  while (at >= 0 && strcmp(k->one[at].id, id) != 0) at--;
  if (at < 0) return -1;
  const struct wn_kept_one one = k->one[at];
  memmove(&k->one[at], &k->one[at + 1], (size_t)(k->count - 1 - at) * sizeof one);
  k->one[k->count - 1] = one;
  return k->count - 1;
}

static json_t *kept_read(struct wn_kept *k, const char *id, bool turns) {
  pthread_mutex_lock(&k->lock);
  const int at = kept_find(k, id);
  char *text = at < 0 ? NULL : strdup(turns ? k->one[at].turns : k->one[at].response);
  pthread_mutex_unlock(&k->lock);
  json_t *out = text ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
  free(text);
  return out;
}
json_t *wn_kept_turns(struct wn_kept *k, const char *id) {
  return kept_read(k, id, true);
}
json_t *wn_kept_response(struct wn_kept *k, const char *id) {
  return kept_read(k, id, false);
}

bool wn_kept_drop(struct wn_kept *k, const char *id) {
  pthread_mutex_lock(&k->lock);
  const int at = kept_find(k, id);
  if (at >= 0) kept_remove(k, at);
  pthread_mutex_unlock(&k->lock);
  return at >= 0;
}
