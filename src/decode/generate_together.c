/* A step of many generations: those that have read their prompts draw a token each, others may read a piece of theirs,
 * and one batch feeds all of it. Generations that draw wait for a piece and not for a whole prompt.
 *
 * A draw is a few passes over V logits. The generations' draws run in parallel; callbacks are called in order. */
#include <omp.h>

#include "base/clock.h"
#include "base/misuse.h"
#include "decode/drafts.h"
#include "decode/session_group.h"

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

/* How many threads draw: one if the backend's memory is not the host's, where a context's calls come one after the
 * other. */
static int together_threads(const wn_context *ctx, const struct wn_session_group *group, int64_t n) {
  return n > 1 && group->model->backend->memory->host ? ctx->threads : 1;
}

/* Draws for the turns in group->order [n]. */
static void together_draw(wn_context *ctx, const struct wn_session_group *group, wn_generation_turn *turns, int64_t n) {
#pragma omp parallel for num_threads(together_threads(ctx, group, n)) schedule(dynamic, 1)
  for (int64_t k = 0; k < n; k++) {
    wn_generation_turn *turn = &turns[group->order[k]];
    turn->status = wn_generation_draw(NULL, turn->generation, &turn->token);
  }
}

/* Turns the drawn tokens into text. `more` of a turn: its token is to be fed. Returns how many are. */
static int64_t together_take(wn_context *ctx, const struct wn_session_group *group, wn_generation_turn *turns,
                             int64_t n) {
  int64_t fed = 0;
  for (int64_t k = 0; k < n; k++) {
    const int64_t i = group->order[k];
    struct wn_generation *g = turns[i].generation;
    bool feed = false;
    if (turns[i].status != WN_OK) { /* draws again, for the error message */
      turns[i].status = wn_generation_draw(ctx, g, &turns[i].token);
      turns[i].token = -1;
      continue;
    }
    turns[i].status = wn_generation_take(g, turns[i].token, &feed);
    if (turns[i].status == WN_OK) turns[i].status = wn_generation_follow(ctx, g, &turns[i].token, &feed);
    if (turns[i].status == WN_OK && !feed) wn_generation_finish(g);
    turns[i].more = turns[i].status == WN_OK && feed;
    fed += turns[i].more;
  }
  return fed;
}

/* Fills group->feeds: `fed` tokens, with drafts where there is room, and up to `pieces` pieces of prompts, 0: any
 * number. Returns how many feeds. */
static int64_t together_feeds(struct wn_session_group *group, wn_generation_turn *turns, int64_t n, int64_t fed,
                              int64_t pieces) {
  int64_t feeds = 0, rows = 0, read = 0;
  for (int64_t i = 0; i < n; i++) {
    struct wn_generation *g = turns[i].generation;
    if (!turns[i].more || (!g->prompted && pieces > 0 && read == pieces)) continue;
    const int64_t room = g->prompted ? (group->most - rows - fed) / fed : 0;
    turns[i].status = wn_generation_feed(g, turns[i].token, room, &group->feeds[feeds]);
    if (g->prompted)
      rows += group->feeds[feeds].T, fed--;
    else
      read++;
    turns[i].more = turns[i].status == WN_OK;
    if (turns[i].more) group->order[feeds++] = i;
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

wn_status wn_generation_step_together(wn_context *ctx, wn_session_group *group, wn_generation_turn *turns, int64_t n,
                                      int64_t pieces) {
  WN_CHECK_WORK(WN_HANDLE_AS("group", group, SESSION_GROUP), WN_ARRAY(turns, n));
  const wn_status refused = together_check(ctx, group, turns, n);
  for (int64_t i = 0; i < n; i++) {
    turns[i].more = false;
    turns[i].token = -1;
    turns[i].status = refused;
    if (refused == WN_OK) turns[i].generation->ctx = ctx;
  }
  if (refused != WN_OK) return refused;
  const double start = wn_seconds_now();
  int64_t drawing = 0;
  for (int64_t i = 0; i < n; i++) {
    bool over = false;
    if (!together_draws(&turns[i])) continue;
    turns[i].status = wn_generation_before(turns[i].generation, &over);
    if (turns[i].status == WN_OK && over) wn_generation_finish(turns[i].generation);
    if (turns[i].status == WN_OK && !over) group->order[drawing++] = i;
  }
  together_draw(ctx, group, turns, drawing);
  const int64_t feeds = together_feeds(group, turns, n, together_take(ctx, group, turns, drawing), pieces);
  if (feeds > 0) (void)wn_batch_run(ctx, &group->room, group->feeds, feeds);
  const double seconds = wn_seconds_now() - start;
  for (int64_t k = 0; k < feeds; k++) together_end(&turns[group->order[k]], &group->feeds[k], seconds);
  for (int64_t i = 0; i < n; i++)
    if (turns[i].token >= 0) turns[i].generation->r->token_seconds += seconds;
  for (int64_t i = 0; i < n; i++)
    if (turns[i].status != WN_OK) return turns[i].status;
  return WN_OK;
}
