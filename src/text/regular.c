/* Regular expressions as deterministic automata: a state is the set of nodes that a text may have led to, of every
 * pattern, and how many characters the text has as far as that matters. States from which no end can be reached are
 * removed. Cost: states x classes x nodes, bounded by the caller's steps. */
#include "text/regular.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "text/regular_nodes.h"

enum { STATES = 16384, CELLS = 1 << 19, HASH = 1 << 15, CLASSES = 1024 };

struct building {
  wn_context *ctx;
  struct wn_nodes nodes;
  uint32_t from[CLASSES], classes;
  bool has[WN_REGULAR_SETS][CLASSES]; /* is the class in the set? */
  uint64_t *sets;                     /* [room, words] of each state */
  uint32_t *characters;               /* [room] */
  uint16_t *next;                     /* [room, classes] */
  bool *ends;                         /* [room] */
  uint32_t words, count, room;
  uint32_t slots[HASH]; /* state + 1 */
  uint16_t stack[2 * WN_REGULAR_NODES];
  uint64_t *steps, spent;
};

/* --- classes of characters --- */

static int building_compare(const void *x, const void *y) {
  const uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
  return (a > b) - (a < b);
}

/* Characters from one bound to the next are in the same sets. */
static wn_status building_classes(struct building *b) {
  static const uint32_t always[] = {0, 8, 0xB, 0xC, 0xE, 0x20, 0xD800, 0xE000};
  uint32_t n = 0;
  for (size_t i = 0; i < sizeof always / sizeof *always; i++) b->from[n++] = always[i];
  for (uint32_t i = 0; i < b->nodes.range_count; i++) {
    if (n + 2 > CLASSES) return wn_fail(b->ctx, WN_ERR_UNSUPPORTED, "the regular expression has too many classes");
    b->from[n++] = b->nodes.range[i].low;
    if (b->nodes.range[i].high < WN_REGULAR_LAST) b->from[n++] = b->nodes.range[i].high + 1;
  }
  qsort(b->from, n, sizeof *b->from, building_compare);
  for (uint32_t i = 0; i < n; i++)
    if (b->classes == 0 || b->from[b->classes - 1] != b->from[i]) b->from[b->classes++] = b->from[i];
  for (uint32_t set = 0; set < b->nodes.set_count; set++)
    for (uint32_t i = 0; i < b->nodes.set[set].count; i++) {
      const struct wn_range *r = &b->nodes.range[b->nodes.set[set].first + i];
      for (uint32_t c = 0; c < b->classes; c++)
        if (b->from[c] >= r->low && b->from[c] <= r->high) b->has[set][c] = true;
    }
  return WN_OK;
}

/* No surrogate, and no control character that has no short escape. */
static bool building_is_written(uint32_t character) {
  if (character < 0x20) return character >= 8 && character <= 13 && character != 11;
  return character < 0xD800 || character >= 0xE000;
}

/* --- states --- */

static uint64_t *building_set(struct building *b, uint32_t state) {
  return b->sets + (size_t)state * b->words;
}

static bool set_has(const uint64_t *set, uint32_t node) {
  return set[node / 64] >> node % 64 & 1;
}

/* Adds a node and all that it leads to without a character. */
static void building_reach(struct building *b, uint64_t *set, uint16_t node, enum wn_node_kind open) {
  uint32_t waiting = 0;
  b->stack[waiting++] = node;
  while (waiting > 0) {
    const uint16_t one = b->stack[--waiting];
    const struct wn_node *n = &b->nodes.node[one];
    if (one == 0 || set_has(set, one)) continue;
    b->spent++;
    set[one / 64] |= UINT64_C(1) << one % 64;
    for (int i = 0; (n->kind == WN_NODE_EMPTY || n->kind == open) && i < 2; i++)
      if (n->to[i] && !set_has(set, n->to[i])) b->stack[waiting++] = n->to[i];
  }
}

/* Does every pattern match a text that ends here? `set` is changed. */
static bool building_ends(struct building *b, uint64_t *set) {
  for (uint32_t node = 1; node < b->nodes.node_count; node++) {
    if (!set_has(set, node) || b->nodes.node[node].kind != WN_NODE_END) continue;
    building_reach(b, set, b->nodes.node[node].to[0], WN_NODE_END);
  }
  /* an anchor that lies before one that led to it has gone on within building_reach */
  for (int i = 0; i < b->nodes.patterns; i++)
    if (!set_has(set, b->nodes.match[i])) return false;
  return true;
}

/* Has every pattern a node? */
static bool building_lives(const struct building *b, const uint64_t *set) {
  uint32_t node = 1;
  for (int i = 0; i < b->nodes.patterns; i++) {
    const uint32_t end = i + 1 < b->nodes.patterns ? b->nodes.start[i + 1] : b->nodes.node_count;
    while (node < end && !set_has(set, node)) node++;
    if (node == end) return false;
    node = end;
  }
  return true;
}

/* The arrays for `room` states. */
static wn_status building_room(struct building *b, uint32_t room) {
  const struct {
    void *at;
    size_t element;
  } rows[] = {{&b->sets, b->words * sizeof *b->sets},
              {&b->characters, sizeof *b->characters},
              {&b->next, b->classes * sizeof *b->next},
              {&b->ends, sizeof *b->ends}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    WN_TRY(wn_resize(b->ctx, "a regular expression", rows[i].at, rows[i].element, b->count, room));
  b->room = room;
  return WN_OK;
}

/* The state of the set that stands behind the last one, which may be there already. */
static wn_status building_state(struct building *b, uint32_t characters, uint32_t *state) {
  const uint64_t *set = building_set(b, b->count);
  uint64_t h = characters;
  for (uint32_t i = 0; i < b->words; i++) h = (h ^ set[i]) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
  uint32_t slot = (uint32_t)(h & (HASH - 1));
  for (; b->slots[slot]; slot = (slot + 1) & (HASH - 1)) {
    *state = b->slots[slot] - 1;
    if (b->characters[*state] == characters && !memcmp(building_set(b, *state), set, b->words * sizeof *set))
      return WN_OK;
  }
  if (b->count + 1 >= STATES || (b->count + 1) * b->classes > CELLS)
    return wn_fail(b->ctx, WN_ERR_UNSUPPORTED, "the regular expression, with its lengths, has more than %u states",
                   b->count);
  *state = b->count++;
  b->slots[slot] = *state + 1;
  b->characters[*state] = characters;
  if (b->count == b->room) WN_TRY(building_room(b, 2 * b->room));
  return WN_OK;
}

/* The nodes that the state's lead to by a character of this class, as the set behind the last one. */
static void building_step(struct building *b, uint32_t state, uint32_t class) {
  uint64_t *from = building_set(b, state), *to = building_set(b, b->count);
  memset(to, 0, b->words * sizeof *to);
  for (uint32_t w = 0; w < b->words; w++)
    for (uint64_t bits = from[w]; bits; bits &= bits - 1) {
      const struct wn_node *n = &b->nodes.node[64 * w + (uint32_t)__builtin_ctzll(bits)];
      b->spent++;
      if (n->kind == WN_NODE_SET && b->has[n->set][class]) building_reach(b, to, n->to[0], WN_NODE_EMPTY);
    }
  b->spent += b->words;
}

static wn_status building_pay(struct building *b) {
  if (b->spent > *b->steps)
    return wn_fail(b->ctx, WN_ERR_UNSUPPORTED, "the regular expression, with its lengths, takes too many steps");
  *b->steps -= b->spent;
  b->spent = 0;
  return WN_OK;
}

static wn_status building_states(struct building *b, int64_t min, int64_t max) {
  const uint32_t counted = (uint32_t)(max < INT64_MAX ? max : min);
  uint32_t state;
  b->words = (b->nodes.node_count + 63) / 64;
  WN_TRY(building_room(b, 64));
  b->count = WN_REGULAR_START;
  for (int i = 0; i < b->nodes.patterns; i++)
    building_reach(b, building_set(b, b->count), b->nodes.start[i], WN_NODE_BEGIN);
  WN_TRY(building_state(b, 0, &state));
  for (uint32_t at = WN_REGULAR_START; at < b->count; at++) {
    const uint32_t characters = b->characters[at], more = characters < counted ? characters + 1 : characters;
    WN_TRY(building_pay(b));
    for (uint32_t class = 0; class < b->classes && (int64_t)characters < max; class ++) {
      if (!building_is_written(b->from[class])) continue;
      building_step(b, at, class);
      if (!building_lives(b, building_set(b, b->count))) continue;
      WN_TRY(building_state(b, more, &state));
      b->next[(size_t)at * b->classes + class] = (uint16_t)state;
    }
    memcpy(building_set(b, b->count), building_set(b, at), b->words * sizeof *b->sets);
    b->ends[at] = (int64_t)characters >= min && building_ends(b, building_set(b, b->count));
  }
  return WN_OK;
}

/* --- the automaton --- */

/* Cuts ways to states from which no end is reached. */
static wn_status building_trim(struct building *b, struct wn_regular *r, bool *good) {
  memcpy(good, r->ends, r->states * sizeof *good);
  for (bool again = true; again;) {
    again = false;
    b->spent += (uint64_t)r->states * r->classes / 4;
    WN_TRY(building_pay(b));
    for (uint32_t s = r->states; s-- > 1;)
      for (uint32_t c = 0; c < r->classes && !good[s]; c++)
        if (good[r->next[(size_t)s * r->classes + c]]) good[s] = again = true;
  }
  for (size_t i = 0; i < (size_t)r->states * r->classes; i++)
    if (!good[r->next[i]]) r->next[i] = WN_REGULAR_DEAD;
  r->goes = good[WN_REGULAR_START];
  return WN_OK;
}

static wn_status building_finish(struct building *b, struct wn_regular **out) {
  const size_t cells = (size_t)b->count * b->classes;
  void *memory;
  WN_TRY(wn_alloc(b->ctx, "a regular expression",
                  sizeof **out + b->classes * sizeof(uint32_t) + cells * sizeof(uint16_t) + 2 * b->count, &memory));
  struct wn_regular *r = memory;
  r->states = b->count;
  r->classes = b->classes;
  r->from = (uint32_t *)(r + 1);
  r->next = (uint16_t *)(r->from + r->classes);
  r->ends = (bool *)(r->next + cells);
  memcpy(r->from, b->from, r->classes * sizeof *r->from);
  memcpy(r->next, b->next, cells * sizeof *r->next);
  memcpy(r->ends, b->ends, r->states * sizeof *r->ends);
  const wn_status status = building_trim(b, r, r->ends + r->states);
  if (status == WN_OK)
    *out = r;
  else
    wn_free(r);
  return status;
}

wn_status wn_regular_create(wn_context *ctx, const char *const *patterns, int count, int64_t min, int64_t max,
                            uint64_t *steps, struct wn_regular **out) {
  *out = NULL;
  if (count > WN_REGULAR_PATTERNS)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "more than %d regular expressions of one text are not served",
                   WN_REGULAR_PATTERNS);
  if (max == INT64_MAX ? min >= STATES : min > max || max >= STATES)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                   "lengths beyond %d, or contrary ones, with a regular expression are not served", STATES - 1);
  struct building *b;
  WN_TRY(WN_ALLOC(ctx, "a regular expression", 1, &b));
  b->ctx = ctx;
  b->steps = steps;
  wn_status status = WN_OK;
  for (int i = 0; i < count && status == WN_OK; i++) status = wn_nodes_add(ctx, &b->nodes, patterns[i]);
  if (status == WN_OK) status = building_classes(b);
  if (status == WN_OK) status = building_states(b, min, max);
  if (status == WN_OK) status = building_finish(b, out);
  wn_free(b->sets);
  wn_free(b->characters);
  wn_free(b->next);
  wn_free(b->ends);
  wn_free(b);
  return status;
}

static uint32_t regular_class(const struct wn_regular *r, uint32_t character) {
  uint32_t low = 0; /* the last class that does not begin after it */
  for (uint32_t high = r->classes; high - low > 1;) {
    const uint32_t middle = low + (high - low) / 2;
    if (r->from[middle] <= character)
      low = middle;
    else
      high = middle;
  }
  return low;
}

uint32_t wn_regular_next(const struct wn_regular *r, uint32_t state, uint32_t character) {
  return r->next[(size_t)state * r->classes + regular_class(r, character)];
}

bool wn_regular_any(const struct wn_regular *r, uint32_t state, uint32_t low, uint32_t high) {
  for (uint32_t c = regular_class(r, low); c < r->classes && r->from[c] <= high; c++)
    if (r->next[(size_t)state * r->classes + c] != WN_REGULAR_DEAD) return true;
  return false;
}
