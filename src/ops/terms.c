/* Names of terms that are not served, for messages and decisions; terms.h has the list. */
#include "ops/terms.h"

static const struct {
  const char *name;
  uint32_t traits;
} terms_rows[] = {
#define TERMS_ROW(bit, name, on, traits) {name, traits},
    WN_TERMS(TERMS_ROW)};

const char *wn_terms_name(uint32_t terms) {
  return terms_rows[__builtin_ctz(terms)].name;
}

const char *wn_terms_lack_traits(uint32_t terms, uint32_t traits) {
  for (int i = 0; i < WN_TERM_COUNT; i++)
    if ((terms >> i & 1) && (terms_rows[i].traits & traits) != traits) return terms_rows[i].name;
  return NULL;
}

/* The name of a score map in the call; known: whether it has functions. */
static const char *terms_map_name(const struct wn_attention *a, bool known) {
  for (int64_t i = 0; i < a->maps; i++)
    if (wn_score_known(a->map[i].kind) == known) return a->map[i].kind->name;
  return NULL;
}

const char *wn_call_lacks(const struct wn_attention *a, uint32_t served) {
  const uint32_t missing = wn_call_terms(a) & ~served;
  if (!missing) return NULL;
  if (missing & WN_TERMS_OWN) return wn_terms_name(missing);
  return terms_map_name(a, !(missing & WN_TERM_UNKNOWN));
}

const char *wn_call_lacks_traits(const struct wn_attention *a, uint32_t traits) {
  const char *own = wn_terms_lack_traits(wn_call_terms(a) & WN_TERMS_OWN, traits);
  for (int64_t i = 0; !own && i < a->maps; i++)
    if ((a->map[i].kind->traits & traits) != traits) return a->map[i].kind->name;
  return own;
}
