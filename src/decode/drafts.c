#include "decode/drafts.h"

#include <string.h>

#include "base/alloc.h"

/* WISH_FIRST: drafts of the first step that has any. With the drawn token there are 2, 4, 8 ... rows, which products
 * take without a rest. */
enum { MATCH_LEAST = 2, MATCH_MOST = 16, WISH_FIRST = 3 };

wn_status wn_drafts_open(struct wn_generation *g) {
  const wn_generate_options *o = g->o;
  const int32_t *before = o->draft_text ? o->draft_text : g->prompt;
  const int64_t count = o->draft_text ? o->draft_text_count : g->prompt_count;
  void *memory;
  if (wn_session_ahead_room(g->session, o->draft_tokens) == 0) return WN_OK;
  if (o->max_tokens > INT64_MAX / (int64_t)sizeof(int32_t) - count)
    return wn_fail(g->ctx, WN_ERR_MEMORY, "out of memory: drafts");
  WN_TRY(wn_session_ahead_open(g->ctx, g->session, o->draft_tokens));
  WN_TRY(wn_batch_room(g->ctx, g->session->model, 1 + o->draft_tokens, 1 + o->draft_tokens, g->session->room));
  WN_TRY(wn_alloc(g->ctx, "drafts", sizeof *g->drafts, &memory));
  struct wn_drafts *d = g->drafts = memory;
  const int64_t room = g->session->capacity - g->session->position;
  d->most = o->draft_tokens, d->wish = d->most < WISH_FIRST ? d->most : WISH_FIRST;
  d->capacity = count + (o->max_tokens < room ? o->max_tokens : room);
  WN_TRY(wn_alloc(g->ctx, "text of drafts", (size_t)d->capacity * sizeof *d->text, &memory));
  d->text = memory;
  memcpy(d->text, before, (size_t)count * sizeof *before);
  d->count = count;
  return WN_OK;
}

void wn_drafts_close(struct wn_generation *g) {
  if (!g->drafts) return;
  wn_session_ahead_close(g->session);
  wn_free(g->drafts->text);
  wn_free(g->drafts);
  g->drafts = NULL;
}

void wn_drafts_note(struct wn_generation *g, int32_t id) {
  struct wn_drafts *d = g->drafts;
  if (d && d->count < d->capacity) d->text[d->count++] = id;
}

/* Looks for the end of the text before it; *length: of the match. Returns where what followed begins. */
static int64_t drafts_look(const struct wn_drafts *d, int64_t *length) {
  const int32_t *end = d->text + d->count - 1;
  int64_t found = 0;
  *length = 0;
  for (int64_t i = d->count - 2; i >= 0 && *length < MATCH_MOST; i--) {
    int64_t n = 0;
    while (n <= i && n < MATCH_MOST && d->text[i - n] == end[-n]) n++;
    if (n > *length) *length = n, found = i + 1;
  }
  return found;
}

/* Guesses at most `most` tokens. */
static int64_t drafts_guess(struct wn_drafts *d, int64_t most) {
  int64_t length, from = drafts_look(d, &length), n = 0;
  if (length < MATCH_LEAST) return 0;
  if (most > d->wish) most = d->wish;
  for (; n < most && from + n < d->count; n++) d->step[1 + n] = d->text[from + n];
  return n;
}

void wn_drafts_add(struct wn_generation *g, int32_t id, int64_t room, struct wn_feed *feed) {
  struct wn_drafts *d = g->drafts;
  if (!d) return;
  const int64_t left = g->o->max_tokens - g->r->tokens - 1; /* of the tokens still to be drawn the last needs no row */
  d->step[0] = id;
  d->guesses = drafts_guess(d, wn_session_ahead_room(g->session, room < left ? room : left));
  d->right = 0;
  g->r->drafted += d->guesses;
  feed->tokens = d->step;
  feed->T += d->guesses;
  feed->ahead = true;
}

bool wn_drafts_next(struct wn_generation *g, int32_t id) {
  struct wn_drafts *d = g->drafts;
  if (d->right == d->guesses || d->step[1 + d->right] != id) return false;
  d->right++, g->r->accepted++;
  return true;
}

wn_status wn_drafts_end(struct wn_generation *g) {
  struct wn_drafts *d = g->drafts;
  if (d->guesses > 0 && d->right == d->guesses) d->wish = 2 * d->wish + 1 < d->most ? 2 * d->wish + 1 : d->most;
  if (d->guesses > 0 && d->right == 0 && d->wish > 1) d->wish /= 2;
  d->guesses = d->right = 0;
  return wn_session_ahead_drop(g->session);
}
