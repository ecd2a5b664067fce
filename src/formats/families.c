/* The families, in alphabetical order, and look-ups among them. */
#include "formats/families.h"

#include <stdio.h>

#include "base/text.h"

#define FAMILY_ROWS(ROW)                                                                                               \
  ROW(gemma2)                                                                                                          \
  ROW(gemma3)                                                                                                          \
  ROW(gpt2)                                                                                                            \
  ROW(granite)                                                                                                         \
  ROW(llama)                                                                                                           \
  ROW(mistral)                                                                                                         \
  ROW(mixtral)                                                                                                         \
  ROW(olmo2)                                                                                                           \
  ROW(phi3)                                                                                                            \
  ROW(qwen2)                                                                                                           \
  ROW(qwen2_moe)                                                                                                       \
  ROW(qwen3)                                                                                                           \
  ROW(qwen3_moe)                                                                                                       \
  ROW(winnow)

#define FAMILY_DECLARE(name) extern const struct wn_family wn_family_##name;
FAMILY_ROWS(FAMILY_DECLARE)
#define FAMILY_ADDRESS(name) &wn_family_##name,
static const struct wn_family *const families[] = {FAMILY_ROWS(FAMILY_ADDRESS)};
enum { FAMILIES = sizeof families / sizeof *families };

const char *wn_family_name(const struct wn_family *f, enum wn_model_form form) {
  return form == WN_FORM_GGUF ? f->gguf.architecture : f->hf.model_type;
}

const struct wn_names *wn_family_names(const struct wn_family *f, enum wn_model_form form) {
  return form == WN_FORM_GGUF ? f->gguf.names : f->hf.names;
}

const struct wn_family *wn_family_find(enum wn_model_form form, const char *name) {
  for (int i = 0; i < FAMILIES; i++) {
    const char *known = wn_family_name(families[i], form);
    if (known && !strcmp(known, name)) return families[i];
  }
  return NULL;
}

/* May the configuration be of this family? A mixture of experts may not if the family has no key for experts. */
static bool family_may_be(const struct wn_family *f, const wn_model_config *c) {
  return c->experts.count == 0 || wn_listed(f->keys, "experts");
}

const struct wn_family *wn_family_of(const wn_model_config *c, enum wn_model_form form) {
  for (int i = 0; i < FAMILIES; i++)
    if (wn_family_name(families[i], form) && family_may_be(families[i], c) && families[i]->is(c, form))
      return families[i];
  return NULL;
}

void wn_family_list(enum wn_model_form form, const char *last, char *out, size_t bytes) {
  int count = last != NULL, listed = 0;
  size_t at = 0;
  for (int i = 0; i < FAMILIES; i++) count += wn_family_name(families[i], form) != NULL;
  *out = 0;
  for (int i = 0; i <= FAMILIES && at < bytes; i++) {
    const char *name = i < FAMILIES ? wn_family_name(families[i], form) : last;
    if (!name) continue;
    const char *before = listed == 0 ? "" : listed == count - 1 ? " and " : ", ";
    at += (size_t)snprintf(out + at, bytes - at, "%s%s", before, name);
    listed++;
  }
}
