/* The rule of the budget search (greedy.h). */
#include "prune/greedy.h"

static bool greedy_can_lower(const struct wn_greedy *g, int64_t l) {
  return g->tokens[l] - g->step >= g->step;
}

static wn_status greedy_try_layer(struct wn_greedy *g, int64_t l, struct wn_greedy_choice *out) {
  if (!isnan(g->trial[l])) return WN_OK;
  WN_TRY(g->evaluate(g->user, l, g->tokens[l] - g->step, &g->trial[l]));
  out->evaluations++;
  g->increase[l] = g->trial[l] - g->loss;
  return WN_OK;
}

/* The layer with the smallest loss in this step; -1: none was evaluated. */
static int64_t greedy_cheapest(const struct wn_greedy *g) {
  int64_t best = -1;
  for (int64_t l = 0; l < g->layers; l++)
    if (greedy_can_lower(g, l) && !isnan(g->trial[l]) && (best < 0 || g->trial[l] < g->trial[best])) best = l;
  return best;
}

static wn_status greedy_try_all(struct wn_greedy *g, struct wn_greedy_choice *out) {
  for (int64_t l = 0; l < g->layers; l++)
    if (greedy_can_lower(g, l)) WN_TRY(greedy_try_layer(g, l, out));
  return WN_OK;
}

/* Layers that were never evaluated come first. */
static wn_status greedy_lazily(struct wn_greedy *g, struct wn_greedy_choice *out) {
  for (;;) {
    int64_t best = -1;
    for (int64_t l = 0; l < g->layers; l++) {
      if (!greedy_can_lower(g, l)) continue;
      if (best < 0 || (isnan(g->increase[l]) && !isnan(g->increase[best])) ||
          (!isnan(g->increase[best]) && g->increase[l] < g->increase[best]))
        best = l;
    }
    if (best < 0 || !isnan(g->trial[best])) {
      out->layer = best;
      return WN_OK;
    }
    WN_TRY(greedy_try_layer(g, best, out));
  }
}

static wn_status greedy_race(struct wn_greedy *g, struct wn_greedy_choice *out) {
  for (int64_t l = 0; l < g->layers; l++) {
    g->lowered[l] = g->tokens[l] - g->step;
    if (!greedy_can_lower(g, l)) g->trial[l] = INFINITY;
  }
  WN_TRY(wn_race_run(g->race, g->layers, g->lowered, g->trial, &out->raced));
  for (int64_t l = 0; l < g->layers && out->raced > 0; l++) out->left += isnan(g->trial[l]);
  return WN_OK;
}

wn_status wn_greedy_choose(struct wn_greedy *g, struct wn_greedy_choice *out) {
  *out = (struct wn_greedy_choice){.layer = -1, .exact = -1};
  for (int64_t l = 0; l < g->layers; l++) g->trial[l] = NAN;
  if (g->lazy) {
    WN_TRY(greedy_lazily(g, out));
  } else {
    if (g->race) WN_TRY(greedy_race(g, out));
    WN_TRY(greedy_try_all(g, out));
    out->layer = greedy_cheapest(g);
  }
  const bool stops = out->layer >= 0 && !(g->trial[out->layer] <= g->target);
  if ((g->lazy || g->race) && (g->check || stops)) {
    const int64_t chosen = out->layer;
    for (int64_t l = 0; l < g->layers; l++)
      if (isinf(g->trial[l])) g->trial[l] = NAN;
    WN_TRY(greedy_try_all(g, out));
    out->exact = greedy_cheapest(g);
    out->exact_loss = out->exact < 0 ? 0 : g->trial[out->exact];
    out->differs = out->exact != chosen;
    if (stops) out->layer = out->exact;
  }
  if (out->layer < 0) {
    out->verdict = WN_GREEDY_AT_FLOOR;
    return WN_OK;
  }
  out->loss = g->trial[out->layer];
  out->verdict = out->loss <= g->target ? WN_GREEDY_LOWER : WN_GREEDY_AT_TARGET;
  return WN_OK;
}

void wn_greedy_take(struct wn_greedy *g, const struct wn_greedy_choice *choice) {
  g->tokens[choice->layer] -= g->step;
  g->loss = choice->loss;
}
