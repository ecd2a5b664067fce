#include "decode/drafts.h"

#include <string.h>

#include "base/alloc.h"
#include "text/declared.h"

/* WISH_FIRST: drafts of the first step that has any. With the drawn token there are 2, 4, 8 ... rows, which products
 * take without a rest. */
enum { MATCH_LEAST = 2, MATCH_SURE = 5, MATCH_MOST = 16, WISH_FIRST = 3 };

/* The capacity of the draft model's session for a text of so many tokens. */
static int64_t drafts_room(const wn_model *model, int64_t tokens) {
  const wn_model_config *c = &model->config;
  const int64_t room = tokens + WN_DRAFT_MAX;
  return c->position == WN_POS_LEARNED && room > c->context ? c->context : room;
}

wn_status wn_drafts_plan_bytes(wn_context *ctx, const wn_model *model, int64_t tokens, size_t *bytes) {
  return wn_session_plan_whole(ctx, model, drafts_room(model, tokens), bytes);
}

/* Opens the draft model's session. */
static wn_status drafts_open_model(struct wn_generation *g, struct wn_drafts *d) {
  wn_model *model = g->o->draft_model;
  WN_TRY(WN_ALLOC(g->ctx, "text of drafts", d->capacity + WN_DRAFT_MAX, &d->read));
  WN_TRY(WN_ALLOC(g->ctx, "logits of drafts", model->config.vocab_size, &d->logits));
  return wn_session_create_whole(g->ctx, model, drafts_room(model, d->capacity), WN_CACHE_AUTO, &d->model);
}

wn_status wn_drafts_open(struct wn_generation *g) {
  const wn_generate_options *o = g->o;
  const int32_t *before = o->draft_text ? o->draft_text : g->prompt;
  const int64_t count = o->draft_text ? o->draft_text_count : g->prompt_count;
  if (wn_session_ahead_room(g->session, o->draft_tokens) == 0) return WN_OK;
  if (o->max_tokens > INT64_MAX / (int64_t)sizeof(int32_t) - count)
    return wn_fail(g->ctx, WN_ERR_MEMORY, "out of memory: drafts");
  WN_TRY(wn_session_ahead_open(g->ctx, g->session, o->draft_tokens));
  WN_TRY(wn_batch_room(g->ctx, g->session->model, 1 + o->draft_tokens, 1 + o->draft_tokens, g->session->room));
  WN_TRY(WN_ALLOC(g->ctx, "drafts", 1, &g->drafts));
  struct wn_drafts *d = g->drafts;
  const int64_t room = g->session->capacity - g->session->position;
  d->most = o->draft_tokens, d->wish = d->most < WISH_FIRST ? d->most : WISH_FIRST;
  d->capacity = count + (o->max_tokens < room ? o->max_tokens : room);
  WN_TRY(WN_ALLOC(g->ctx, "text of drafts", d->capacity, &d->text));
  memcpy(d->text, before, (size_t)count * sizeof *before);
  d->count = count;
  return o->draft_model ? drafts_open_model(g, d) : WN_OK;
}

void wn_drafts_close(struct wn_generation *g) {
  if (!g->drafts) return;
  wn_session_ahead_close(g->session);
  wn_session_destroy(g->drafts->model);
  wn_free(g->drafts->read);
  wn_free(g->drafts->logits);
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

/* Feeds the draft model's session, and returns the most probable token after them; -1: it has failed. */
static int32_t drafts_feed_model(struct wn_generation *g, struct wn_drafts *d, const int32_t *ids, int64_t n) {
  int32_t best = -1;
  memcpy(d->read + d->model->position, ids, (size_t)n * sizeof *ids);
  if (wn_session_feed(g->ctx, d->model, ids, n, 0, d->logits) != WN_OK) return -1;
  for (int32_t i = 0; i < g->entries; i++)
    if (best < 0 || d->logits[i] > d->logits[best]) best = i;
  return best;
}

/* What the draft model guesses. A failure ends its guessing: the text needs none. */
static int64_t drafts_ask(struct wn_generation *g, struct wn_drafts *d, int64_t most) {
  struct wn_session *s = d->model;
  int64_t same = s->position < d->count - 1 ? s->position : d->count - 1, n = 0;
  if (most > s->capacity - d->count) most = s->capacity - d->count;
  if (most < 1) return 0;
  while (same > 0 && d->read[same - 1] != d->text[same - 1]) same--; /* only guesses, at the end, may differ */
  if (wn_session_take_back(s, s->position - same) != WN_OK) return 0;
  int32_t next = drafts_feed_model(g, d, d->text + same, d->count - same);
  while (next >= 0) {
    d->step[1 + n++] = next;
    if (n == most || wn_declared_is_end(&g->session->model->declared, next)) return n;
    next = drafts_feed_model(g, d, &next, 1);
  }
  wn_session_destroy(s);
  d->model = NULL;
  return n;
}

/* Guesses at most `most` tokens. */
static int64_t drafts_guess(struct wn_generation *g, struct wn_drafts *d, int64_t most) {
  int64_t length, from = drafts_look(d, &length), n = 0;
  if (most > d->wish) most = d->wish;
  if (d->model && length < MATCH_SURE) return drafts_ask(g, d, most);
  if (length < MATCH_LEAST) return 0;
  for (; n < most && from + n < d->count; n++) d->step[1 + n] = d->text[from + n];
  return n;
}

void wn_drafts_add(struct wn_generation *g, int32_t id, int64_t room, struct wn_feed *feed) {
  struct wn_drafts *d = g->drafts;
  if (!d) return;
  const int64_t left = g->o->max_tokens - g->r->tokens - 1; /* of the tokens still to be drawn the last needs no row */
  d->step[0] = id;
  d->guesses = drafts_guess(g, d, wn_session_ahead_room(g->session, room < left ? room : left));
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
