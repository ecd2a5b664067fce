#include "serve/prefix.h"

#include <string.h>

#include "base/alloc.h"
#include "decode/session.h"
#include "decode/snapshot.h"

struct wn_prefix_state {
  struct wn_prefix_state *before, *after; /* before: used more recently; after: less recently */
  struct wn_snapshot *snapshot;
  uint64_t bytes;
  int64_t count;
  int32_t ids[]; /* [count] */
};

/* --- the list --- */

static void prefix_unlink(struct wn_prefix *p, struct wn_prefix_state *x) {
  *(x->before ? &x->before->after : &p->first) = x->after;
  *(x->after ? &x->after->before : &p->last) = x->before;
}

static void prefix_link(struct wn_prefix *p, struct wn_prefix_state *x) {
  x->before = NULL;
  x->after = p->first;
  *(p->first ? &p->first->before : &p->last) = x;
  p->first = x;
}

static void prefix_use(struct wn_prefix *p, struct wn_prefix_state *x) {
  prefix_unlink(p, x);
  prefix_link(p, x);
}

static void prefix_drop(struct wn_prefix *p, struct wn_prefix_state *x) {
  prefix_unlink(p, x);
  p->counts.bytes -= x->bytes;
  p->counts.states--;
  wn_snapshot_destroy(x->snapshot);
  wn_free(x);
}

void wn_prefix_shrink(struct wn_prefix *p, uint64_t bytes) {
  while (p->counts.bytes > bytes) prefix_drop(p, p->last);
}

/* --- what a state has in common with a prompt --- */

/* How many tokens a state and a prompt have in common at the beginning. */
static int64_t prefix_common(const struct wn_prefix_state *x, const int32_t *ids, int64_t count) {
  const int64_t most = count < x->count ? count : x->count;
  int64_t n = 0;
  while (n < most && x->ids[n] == ids[n]) n++;
  return n;
}

/* The last place of a prompt, at most `most`, at which the state can be used, if `common` tokens agree; 0: none. */
static int64_t prefix_serves(const struct wn_prefix_state *x, bool rolls_back, int64_t common, int64_t most) {
  if (rolls_back) return wn_session_place_before(common < most ? common : most);
  return common == x->count && common <= most ? common : 0;
}

int64_t wn_prefix_find(struct wn_prefix *p, wn_session *s, const int32_t *ids, int64_t count) {
  const bool rolls_back = wn_snapshot_rolls_back(s);
  struct wn_prefix_state *best = NULL;
  int64_t longest = 0;
  if (p->limit == 0) return 0;
  for (struct wn_prefix_state *x = p->first; x; x = x->after) {
    const int64_t n = prefix_serves(x, rolls_back, prefix_common(x, ids, count), count - 1);
    if (n > longest && wn_snapshot_suits(x->snapshot, s)) best = x, longest = n;
  }
  p->counts.prompts++;
  if (!best) return 0;
  const struct wn_pins pins = s->pins;
  if (wn_snapshot_restore(best->snapshot, longest, s) != WN_OK) { /* then the prompt is read */
    wn_session_reset(s);
    s->pins = pins;
    return 0;
  }
  prefix_use(p, best);
  p->counts.found++;
  p->counts.tokens += (uint64_t)longest;
  return longest;
}

struct wn_prefix_places wn_prefix_places(const struct wn_prefix *p, const wn_session *s, const int32_t *ids,
                                         int64_t count) {
  struct wn_prefix_places out = {.last = wn_session_place_before(count)};
  if (p->limit == 0) return (struct wn_prefix_places){0};
  if (wn_snapshot_rolls_back(s)) return out;
  for (const struct wn_prefix_state *x = p->first; x; x = x->after) {
    const int64_t n = wn_session_place_before(prefix_common(x, ids, count));
    if (n > out.part && n < out.last && wn_snapshot_suits(x->snapshot, s)) out.part = n;
  }
  return out;
}

/* Is the state known already? Drops states that the new one makes unnecessary. */
static bool prefix_knows(struct wn_prefix *p, const wn_session *s, const int32_t *ids, int64_t n) {
  const bool rolls_back = wn_snapshot_rolls_back(s);
  for (struct wn_prefix_state *x = p->first, *next; x; x = next) {
    next = x->after;
    const int64_t common = prefix_common(x, ids, n);
    if ((common < n && common < x->count) || !wn_snapshot_suits(x->snapshot, s)) continue;
    if (common == n && (rolls_back || x->count == n)) {
      prefix_use(p, x);
      return true;
    }
    if (common == x->count && rolls_back) prefix_drop(p, x);
  }
  return false;
}

void wn_prefix_keep(struct wn_prefix *p, wn_context *ctx, const wn_session *s, const int32_t *ids, int64_t n,
                    uint64_t room) {
  const uint64_t bytes = wn_snapshot_need(s, n) + sizeof(struct wn_prefix_state) + (uint64_t)n * sizeof *ids;
  void *memory;
  if (s->compressed) return; /* what is held depends on where its prompt ended */
  if (room > p->limit) room = p->limit;
  if (bytes > room || prefix_knows(p, s, ids, n)) return;
  wn_prefix_shrink(p, room - bytes);
  if (p->counts.states == WN_PREFIX_STATES) prefix_drop(p, p->last);
  if (wn_alloc(ctx, "a state of the prefix cache", sizeof(struct wn_prefix_state) + (size_t)n * sizeof *ids, &memory) !=
      WN_OK)
    return;
  struct wn_prefix_state *x = memory;
  if (wn_snapshot_take(ctx, s, n, &x->snapshot) != WN_OK) {
    wn_free(x);
    return;
  }
  x->bytes = bytes;
  x->count = n;
  memcpy(x->ids, ids, (size_t)n * sizeof *ids);
  prefix_link(p, x);
  p->counts.bytes += bytes;
  p->counts.states++;
}
