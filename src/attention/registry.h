/* The attention mechanisms: one file and one row each. A row gives its configuration keys (and with them parsing,
 * range checks, help and config.json), its check, and what it puts into the attention operation. */
#ifndef WN_ATTENTION_REGISTRY_H
#define WN_ATTENTION_REGISTRY_H

#include "base/fields.h"
#include "ops/attention.h"
#include "winnow/attention.h"

/* The model's side of a check; heads 0: not known yet. */
struct wn_attention_shape {
  int64_t heads, kv_heads, head_size;
};

struct wn_mechanism {
  const char *name;              /* "selective" */
  const char *summary;           /* one line, with the paper */
  const struct wn_field *fields; /* offsets into wn_attention_config */
  int field_count;
  void (*init)(wn_attention_config *config); /* its defaults, on a zeroed struct */
  bool (*is_enabled)(const wn_attention_config *config);
  /* What ranges of single keys cannot say. `where` stands for the file. */
  wn_status (*check)(wn_context *ctx, const char *where, const wn_attention_config *config,
                     const struct wn_attention_shape *shape);
  void (*fill)(const wn_attention_config *config, int64_t head_size, struct wn_attention *out);
};

extern const struct wn_mechanism wn_mechanism_dense, wn_mechanism_selective;
#define WN_MECHANISMS_MAX 32
int wn_mechanism_count(void);
const struct wn_mechanism *wn_mechanism_at(int i);

/* The groups of all mechanisms over a wn_attention_config at `base`; returns how many (at most WN_MECHANISMS_MAX).
 * prefix is borrowed. */
int wn_attention_field_groups(const char *prefix, size_t base, struct wn_field_group *out);
wn_status wn_attention_config_check(wn_context *ctx, const char *where, const wn_attention_config *config,
                                    const struct wn_attention_shape *shape);

/* Fills the terms that come from the configuration: scale (1/sqrt(head_size) unless given), sel.on, its choices,
 * sel.mem and sel.mem_tau. Arrays, shapes and sel.mem_coef stay the caller's. */
void wn_attention_terms(const wn_attention_config *config, int64_t head_size, struct wn_attention *out);

#endif
