/* The prefix cache: kept states of prompts, for later prompts that begin with the same tokens. Only the worker's thread
 * uses it.
 *
 * An answer's bits do not depend on whether its prompt's beginning was found. States are taken and used only at the
 * places where every prompt is cut (decode/session.h), by sessions with the same model, policy, budgets and options,
 * and cache format (decode/snapshot.h). If a session holds everything, one state also serves all shorter places. Under
 * budgets a state serves only its own place. So one state is kept at a prompt's last place, for a conversation that
 * goes on, and one where a prompt departs from a known one, for a beginning that many prompts share.
 *
 * The least recently used state is dropped first. Finding a state compares the tokens of all states. */
#ifndef WN_SERVE_PREFIX_H
#define WN_SERVE_PREFIX_H

#include <stdbool.h>
#include <stdint.h>
#include "winnow/model.h"

enum { WN_PREFIX_STATES = 1024 }; /* the most states */

struct wn_prefix_counts {
  uint64_t prompts, found,
      tokens;     /* prompts looked up; those whose beginning was found; tokens that were not read again */
  uint64_t bytes; /* bytes of the present states */
  int states;
};

struct wn_prefix_state;
struct wn_prefix {
  uint64_t limit;                       /* bytes; 0: nothing is kept */
  struct wn_prefix_state *first, *last; /* the most recently used one; the least */
  struct wn_prefix_counts counts;
};

/* Places at which a prompt's state is worth keeping; 0: none. */
struct wn_prefix_places {
  int64_t part, last; /* part: under budgets, where it departs from a known prompt; last: its last place */
};

/* Restores the longest known beginning of ids [count] in an empty session. The last token is always left to be read,
 * since its logits are needed. Returns how many tokens need not be read. */
int64_t wn_prefix_find(struct wn_prefix *prefix, wn_session *session, const int32_t *ids, int64_t count);
/* The places for a prompt, after wn_prefix_find. */
struct wn_prefix_places wn_prefix_places(const struct wn_prefix *prefix, const wn_session *session, const int32_t *ids,
                                         int64_t count);
/* Keeps the state of a session that has read ids [n], where n is one of the places, if it fits into `room` bytes
 * together with more recently used states. Without memory it is not kept. */
void wn_prefix_keep(struct wn_prefix *prefix, wn_context *ctx, const wn_session *session, const int32_t *ids, int64_t n,
                    uint64_t room);
/* Drops the least recently used states until the rest take at most so many bytes. */
void wn_prefix_shrink(struct wn_prefix *prefix, uint64_t bytes);

#endif
