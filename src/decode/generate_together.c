/* A step of many generations: those that have read their prompts draw a token each, others may read a piece of theirs,
 * and one batch feeds all of it. Generations that draw wait for a piece and not for a whole prompt. A step of one
 * generation is the same, and whole texts are such steps.
 *
 * A draw is a few passes over V logits. The generations' draws run in parallel, on a device in one call of the backend;
 * callbacks are called in order. */

#include "base/clock.h"
#include "base/misuse.h"
#include "base/options.h"
#include "base/parallel.h"
#include "decode/drafts.h"
#include "decode/session_group.h"

struct together {
  wn_context *ctx;
  struct wn_room *room;
  struct wn_feed *feeds;     /* [n] */
  int64_t *order, most;      /* order [n]; the most rows of single tokens */
  wn_generation_turn *turns; /* [n] */
  int64_t n;
};

static wn_status together_check(wn_context *ctx, const struct wn_session_group *group, const wn_generation_turn *turns,
                                int64_t n) {
  if (n < 1 || n > group->most)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generations together: %lld, expected 1 to the group's %lld", (long long)n,
                   (long long)group->most);
  for (int64_t i = 0; i < n; i++) {
    const struct wn_generation *g = turns[i].generation;
    WN_CHECK_ARGUMENTS(ctx, WN_HANDLE_AS("turns' generation", g, GENERATION));
    for (int64_t j = 0; j < i; j++)
      if (turns[j].generation->session == g->session)
        return wn_fail(ctx, WN_ERR_ARGUMENT, "generations together: turns %lld and %lld are of the same session",
                       (long long)j, (long long)i);
  }
  return WN_OK;
}

/* Does the generation draw in this step? One whose text has ended without another token is finished. */
static bool together_draws(wn_generation_turn *turn) {
  struct wn_generation *g = turn->generation;
  if (g->ended) return false;
  if (wn_context_cancelled(g->ctx) && (g->prompted || g->r->prompt_tokens > 0)) {
    g->r->end = WN_GENERATE_CANCELLED;
    wn_generation_finish(g);
    return false;
  }
  if (!g->prompted) {
    turn->more = true;
    return false;
  }
  if (g->o->max_tokens > 0) return true;
  wn_generation_finish(g);
  return false;
}

/* Draws for those of the first `drawing` turns whose logits are not on the host, WN_SAMPLE_ROWS at a time. */
static wn_status together_draw_apart(const struct together *x, int64_t drawing) {
  struct wn_generation *some[WN_SAMPLE_ROWS];
  int64_t n = 0;
  for (int64_t k = 0; k < drawing; k++) {
    struct wn_generation *g = x->turns[x->order[k]].generation;
    if (g->apart) some[n++] = g;
    if (n == 0 || (n < WN_SAMPLE_ROWS && k + 1 < drawing)) continue;
    WN_TRY(wn_generation_draw(x->ctx, some, n));
    n = 0;
  }
  return WN_OK;
}

/* A turn's own draw, if its logits are on the host, and what was drawn for it. */
static wn_status together_draw_one(wn_context *ctx, wn_generation_turn *turn) {
  if (!turn->generation->apart) WN_TRY(wn_generation_draw(ctx, &turn->generation, 1));
  return wn_generation_drawn(ctx, turn->generation, &turn->token);
}

struct together_drawing {
  const struct together *x;
  wn_status apart; /* of the draws whose logits are not on the host */
};
static void together_draw_turn(void *args, int64_t k) {
  const struct together_drawing *d = args;
  wn_generation_turn *turn = &d->x->turns[d->x->order[k]];
  turn->status = d->apart == WN_OK ? together_draw_one(NULL, turn) : d->apart;
}

/* Draws for the first `drawing` turns in the order; on one thread, if the backend's memory is not the host's, where a
 * context's calls come one after the other. */
static void together_draw(const struct together *x, int64_t drawing) {
  const bool host = x->turns->generation->session->model->backend->memory->host;
  const struct together_drawing d = {x, together_draw_apart(x, drawing)};
  wn_parallel_tasks(host ? x->ctx->threads : 1, drawing, together_draw_turn, &d);
}

/* Turns the drawn tokens into text. `more` of a turn: its token is to be fed. Returns how many are. */
static int64_t together_take(const struct together *x, int64_t drawn) {
  int64_t fed = 0;
  for (int64_t k = 0; k < drawn; k++) {
    wn_generation_turn *turn = &x->turns[x->order[k]];
    struct wn_generation *g = turn->generation;
    bool feed = false;
    if (turn->status != WN_OK) {
      (void)together_draw_one(x->ctx, turn); /* again, for the error message */
      turn->token = -1;
      continue;
    }
    turn->status = wn_generation_take(g, turn->token, &feed);
    if (turn->status == WN_OK) turn->status = wn_generation_follow(x->ctx, g, &turn->token, &feed);
    if (turn->status == WN_OK && !feed) wn_generation_finish(g);
    turn->more = turn->status == WN_OK && feed;
    fed += turn->more;
  }
  return fed;
}

/* Fills the feeds: `fed` tokens, with drafts where there is room, and up to `pieces` pieces of prompts, 0: any number.
 * Returns how many feeds. */
static int64_t together_feeds(const struct together *x, int64_t fed, int64_t pieces) {
  int64_t feeds = 0, rows = 0, read = 0;
  for (int64_t i = 0; i < x->n; i++) {
    wn_generation_turn *turn = &x->turns[i];
    struct wn_generation *g = turn->generation;
    if (!turn->more || (!g->prompted && pieces > 0 && read == pieces)) continue;
    const int64_t room = g->prompted ? (x->most - rows - fed) / fed : 0;
    turn->status = wn_generation_feed(g, turn->token, room, &x->feeds[feeds]);
    if (g->prompted)
      rows += x->feeds[feeds].T, fed--;
    else
      read++;
    turn->more = turn->status == WN_OK;
    if (turn->more) x->order[feeds++] = i;
  }
  return feeds;
}

/* What a generation has of the step, which took so long. */
static void together_end(wn_generation_turn *turn, const struct wn_feed *feed, double seconds) {
  struct wn_generation *g = turn->generation;
  const bool read = !g->prompted;
  turn->status = wn_generation_fed(g, feed);
  turn->more = turn->status == WN_OK && (!read || !g->prompted || g->o->max_tokens > 0);
  if (read) g->r->prompt_seconds += seconds;
  if (turn->status == WN_OK && !turn->more) wn_generation_finish(g);
}

static wn_status together_step(struct together *x, int64_t pieces) {
  const double start = wn_seconds_now();
  int64_t drawing = 0;
  for (int64_t i = 0; i < x->n; i++) {
    wn_generation_turn *turn = &x->turns[i];
    bool over = false;
    *turn = (wn_generation_turn){.generation = turn->generation, .token = -1, .status = WN_OK};
    turn->generation->ctx = x->ctx;
    if (!together_draws(turn)) continue;
    turn->status = wn_generation_before(turn->generation, &over);
    if (turn->status == WN_OK && over) wn_generation_finish(turn->generation);
    if (turn->status == WN_OK && !over) x->order[drawing++] = i;
  }
  together_draw(x, drawing);
  const int64_t feeds = together_feeds(x, together_take(x, drawing), pieces);
  if (feeds > 0) (void)wn_batch_run(x->ctx, x->room, x->feeds, feeds);
  const double seconds = wn_seconds_now() - start;
  for (int64_t k = 0; k < feeds; k++) together_end(&x->turns[x->order[k]], &x->feeds[k], seconds);
  wn_status status = WN_OK;
  for (int64_t i = 0; i < x->n; i++) {
    if (x->turns[i].token >= 0) x->turns[i].generation->r->token_seconds += seconds;
    if (status == WN_OK) status = x->turns[i].status;
  }
  return status;
}

wn_status wn_generation_step_together(wn_context *ctx, wn_session_group *group, wn_generation_turn *turns, int64_t n,
                                      int64_t pieces) {
  WN_CHECK_WORK(WN_HANDLE_AS("group", group, SESSION_GROUP), WN_ARRAY(turns, n));
  const wn_status refused = together_check(ctx, group, turns, n);
  if (refused == WN_OK) {
    struct together x = {ctx, &group->room, group->feeds, group->order, group->most, turns, n};
    return together_step(&x, pieces);
  }
  for (int64_t i = 0; i < n; i++) turns[i].more = false, turns[i].token = -1, turns[i].status = refused;
  return refused;
}

wn_status wn_generation_step(wn_context *ctx, wn_generation *g, bool *more) {
  WN_CHECK_WORK(WN_HANDLE_AS("generation", g, GENERATION), WN_POINTER(more));
  wn_generation_turn turn = {.generation = g};
  struct wn_feed feed;
  int64_t order;
  bool layer;
  g->ctx = ctx;
  const wn_status read = wn_generation_read_layer(g, &layer);
  if (layer || read != WN_OK) {
    *more = read == WN_OK && !g->ended;
    return read;
  }
  struct together x = {ctx, g->session->room, &feed, &order, 1 + WN_DRAFT_MAX, &turn, 1};
  const wn_status status = together_step(&x, 1);
  *more = turn.more;
  return status;
}

wn_status wn_session_generate(wn_context *ctx, wn_session *session, const wn_generate_options *options,
                              wn_generate_result *result) {
  WN_CHECK_WORK(WN_HANDLE(session, SESSION));
  wn_generation *g;
  bool more = true;
  if (result) *result = (wn_generate_result){.end_token = -1, .unfed = -1};
  WN_TRY(wn_generation_create(ctx, session, options, &g));
  wn_status status = WN_OK;
  while (status == WN_OK && more) status = wn_generation_step(ctx, g, &more);
  if (result) *result = g->result;
  wn_generation_destroy(g);
  return status;
}

wn_status wn_generate(wn_context *ctx, wn_model *model, const wn_generate_options *options,
                      wn_generate_result *result) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL));
  const wn_model_config *c = &model->config;
  wn_generate_options o;
  wn_session *session = NULL;
  const int32_t *prompt;
  int64_t prompt_count;
  int32_t *encoded = NULL;
  if (result) *result = (wn_generate_result){.end_token = -1, .unfed = -1};
  WN_TRY(WN_OPTIONS_READ(ctx, wn_generate_options, options, &o));
  WN_TRY(wn_generation_check(ctx, model, &o));
  wn_status status = wn_generation_prompt(ctx, &o, &prompt, &prompt_count, &encoded);
  if (status == WN_OK && c->position == WN_POS_LEARNED && prompt_count > c->context)
    status = wn_fail(ctx, WN_ERR_ARGUMENT, "generate: the prompt has %lld tokens, the model learned positions for %lld",
                     (long long)prompt_count, (long long)c->context);
  if (status == WN_OK) {
    int64_t capacity = prompt_count + o.max_tokens;
    if (c->position == WN_POS_LEARNED && capacity > c->context) capacity = c->context;
    const wn_session_options room = {.size = sizeof room,
                                     .sequences = 1,
                                     .capacity = capacity,
                                     .budgets = o.budgets,
                                     .cache = o.cache,
                                     .counts = o.counts,
                                     .control_marks = o.control != NULL};
    status = wn_session_create(ctx, model, &room, &session);
  }
  o.prompt = prompt;
  o.prompt_count = prompt_count;
  if (status == WN_OK) status = wn_session_generate(ctx, session, &o, result);
  wn_session_destroy(session);
  wn_tokens_free(encoded);
  return status;
}
