/* longrope while decoding. A text is rotated with one set of divisors up to the original context N and with another
 * beyond (model/rotary.c). The keys in a cache, and everything above the first layer, depend on the set. So a session
 * whose text grows beyond N reads the text again, once, with the other set; its results are then those of the whole
 * text. transformers' generate() does the same. Cost: reading the text a second time when it passes N, and 4 bytes per
 * token. */
#include "base/error.h"
#include "decode/batch.h"
#include "model/config.h"

bool wn_session_has_history(const struct wn_session *s) {
  return wn_rope_is_long(&s->model->config, s->capacity);
}

wn_status wn_session_stretch(struct wn_session *s, int64_t T) {
  if (!s->history) return WN_OK;
  const int64_t seen = s->position;
  const bool stretched = wn_rope_is_long(&s->model->config, seen + T);
  if (stretched == s->stretched) return WN_OK;
  wn_session_reset_caches(s);
  s->position = 0;
  s->stretched = stretched;
  struct wn_feed f = {.session = s, .tokens = s->history, .stride = s->capacity};
  return wn_batch_feed(s->ctx, &f, seen, 0);
}
