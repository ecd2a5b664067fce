#include "serve/keys.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

void wn_keys_open(struct wn_keys *keys) {
  *keys = (struct wn_keys){.count = 0};
  pthread_mutex_init(&keys->lock, NULL);
}

void wn_keys_close(struct wn_keys *keys) {
  wn_free(keys->list);
  pthread_mutex_destroy(&keys->lock);
}

/* The length without white space at the end. */
static size_t keys_trimmed(const char *text, size_t n) {
  while (n > 0 && strchr(" \t\r", text[n - 1])) n--;
  return n;
}

/* Reads a line of n bytes. False: it has no key. */
static bool keys_line(const char *line, size_t n, int number, struct wn_key *out, size_t *bytes) {
  size_t key = 0, skip;
  while (key < n && !(line[key] == '#' && (key == 0 || line[key - 1] == ' ' || line[key - 1] == '\t'))) key++;
  skip = key < n ? key + 1 + strspn(line + key + 1, " \t#") : n;
  *bytes = keys_trimmed(line, key);
  if (*bytes == 0 || *bytes > WN_KEY_BYTES) return *bytes > 0;
  *out = (struct wn_key){.bytes = *bytes};
  memcpy(out->key, line, *bytes);
  const size_t label = skip < n ? keys_trimmed(line + skip, n - skip) : 0;
  if (label > 0)
    snprintf(out->label, sizeof out->label, "%.*s", (int)(label < WN_KEY_LABEL ? label : WN_KEY_LABEL), line + skip);
  else
    snprintf(out->label, sizeof out->label, "line %d", number);
  return true;
}

static wn_status keys_read(wn_context *ctx, const char *text, struct wn_key *list, int *count) {
  int number = 1;
  *count = 0;
  for (const char *line = text;; number++) {
    const size_t n = strcspn(line, "\n");
    struct wn_key key;
    size_t bytes;
    if (keys_line(line, n, number, &key, &bytes)) {
      if (bytes > WN_KEY_BYTES)
        return wn_fail(ctx, WN_ERR_ARGUMENT, "server: line %d of the keys: a key has 1 to %d bytes, found %zu", number,
                       WN_KEY_BYTES, bytes);
      if (*count == WN_KEYS) return wn_fail(ctx, WN_ERR_ARGUMENT, "server: there are more than %d keys", WN_KEYS);
      for (int i = 0; i < *count; i++)
        if (!strcmp(list[i].key, key.key))
          return wn_fail(ctx, WN_ERR_ARGUMENT, "server: line %d of the keys: the key labelled \"%s\" again", number,
                         list[i].label);
      list[(*count)++] = key;
    }
    if (!line[n]) break;
    line += n + 1;
  }
  return *count > 0 ? WN_OK : wn_fail(ctx, WN_ERR_ARGUMENT, "server: there is no key: expected one on each line");
}

wn_status wn_keys_set(wn_context *ctx, struct wn_keys *keys, const char *text) {
  struct wn_key *list;
  int count, lines = 1;
  for (const char *c = text; *c; c++) lines += *c == '\n';
  WN_TRY(WN_ALLOC(ctx, "keys", lines < WN_KEYS ? lines : WN_KEYS, &list));
  const wn_status status = keys_read(ctx, text, list, &count);
  if (status != WN_OK) {
    wn_free(list);
    return status;
  }
  pthread_mutex_lock(&keys->lock);
  struct wn_key *old = keys->list;
  keys->list = list;
  keys->count = count;
  pthread_mutex_unlock(&keys->lock);
  wn_free(old);
  return WN_OK;
}

bool wn_keys_admit(struct wn_keys *keys, const char *authorization, char label[WN_KEY_LABEL]) {
  const bool bearer = authorization && !strncmp(authorization, "Bearer ", 7);
  const char *given = bearer ? authorization + 7 : "";
  const size_t n = strlen(given);
  label[0] = 0;
  pthread_mutex_lock(&keys->lock);
  bool admitted = !keys->list;
  for (int k = 0; k < keys->count; k++) {
    const struct wn_key *key = &keys->list[k];
    unsigned differs = n != key->bytes;
    for (size_t i = 0; i < n; i++) differs |= (unsigned)(given[i] ^ key->key[i % key->bytes]);
    if (differs) continue;
    memcpy(label, key->label, WN_KEY_LABEL);
    admitted = true;
  }
  pthread_mutex_unlock(&keys->lock);
  return admitted;
}
