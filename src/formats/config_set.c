/* Setting windows by layer and mechanisms' numbers by key; testing the scale of the logits. */
#include "formats/config_set.h"

#include <math.h>
#include <string.h>

#include "attention/registry.h"
#include "base/error.h"
#include "model/config.h"

wn_status wn_config_set_window(wn_context *ctx, const char *where, int64_t window,
                               bool (*windowed)(const void *user, int64_t layer), const void *user,
                               wn_model_config *c) {
  enum {
    PATTERN = sizeof c->attention.window_layers - 1,
    LAYERS = 4096 /* a larger count is refused together with other sizes */
  };
  char pattern[PATTERN + 1];
  bool some = false, all = true;
  for (int64_t l = 0; l < c->layers && l < LAYERS; l++) {
    const bool has = windowed(user, l);
    some |= has;
    all &= has;
    if (l < PATTERN) pattern[l] = has ? '1' : '0';
  }
  if (!some || window == 0) return WN_OK;
  if (c->layers > PATTERN)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: sliding windows in some of %lld layers; up to %d are possible", where,
                   (long long)c->layers, PATTERN);
  pattern[c->layers] = 0;
  c->attention.window = window;
  if (!all) memcpy(c->attention.window_layers, pattern, (size_t)c->layers + 1);
  return WN_OK;
}

/* The number's offset in a wn_model_config; 0: there is no such key (the first member is a size). */
static size_t config_number_at(const char *key) {
  struct wn_field_group groups[WN_MODEL_FIELD_GROUPS_MAX];
  const int count = wn_attention_field_groups("", offsetof(wn_model_config, attention), groups);
  for (int g = 0; g < count; g++)
    for (int f = 0; f < groups[g].count; f++)
      if (groups[g].fields[f].type == WN_FIELD_DOUBLE && !strcmp(groups[g].fields[f].key, key))
        return groups[g].base + groups[g].fields[f].offset;
  return 0;
}

double wn_config_attention(const wn_model_config *c, const char *key) {
  const size_t at = config_number_at(key);
  double value = 0;
  if (at) memcpy(&value, (const char *)c + at, sizeof value);
  return value;
}

wn_status wn_config_set_attention(wn_context *ctx, const char *where, const char *key, double value,
                                  wn_model_config *c) {
  const size_t at = config_number_at(key);
  if (!at) return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: attention has no \"%s\", which this model needs", where, key);
  memcpy((char *)c + at, &value, sizeof value);
  return WN_OK;
}

bool wn_config_scale_is_plain(const wn_model_config *c) {
  const double plain = 1 / sqrt((double)c->head_size), scale = c->attention.scale;
  return scale == 0 || fabs(scale - plain) <= 1e-9 * plain;
}
