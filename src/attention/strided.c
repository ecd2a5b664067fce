/* Strided sparse attention: Child, Gray, Radford, Sutskever 2019 (section 4.2, both heads of the pattern merged):
 * a row sees its last `strided` keys and, further back, every strided-th. */
#include "attention/registry.h"
#include "ops/terms.h"

static const struct wn_field fields[] = {
    WN_KEY("strided", INT64, offsetof(wn_attention_config, strided),
           "n: a row sees its last n keys and every n-th before; 0: all", .min = 0, .max = 1 << 30),
};

static bool strided_is_enabled(const wn_attention_config *config) {
  return config->strided > 0;
}

static void strided_fill(const wn_attention_config *config, int64_t layer, int64_t head_size,
                         struct wn_attention *out) {
  (void)layer, (void)head_size;
  out->strided = config->strided;
}

static const char *const cases[] = {"{\"strided\":7}", NULL};

const struct wn_mechanism wn_mechanism_strided = {
    .name = "strided",
    .summary = "strided sparse attention (Child et al. 2019)",
    .terms = WN_TERM_STRIDED,
    WN_MECHANISM_TABLE(field, fields),
    .is_enabled = strided_is_enabled,
    .fill = strided_fill,
    .cases = cases,
};
