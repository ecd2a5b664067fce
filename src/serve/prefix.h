/* The prefix cache: states of prompts that have been read, for prompts that begin with the same tokens. Used by the
 * worker's thread alone.
 *
 * An answer's bits do not depend on whether its prompt's beginning was found: states are taken and used only at the
 * places where every prompt is cut (decode/session.h), by sessions of the same model, policy, budgets with all their
 * options, and cache format (decode/snapshot.h). Where a session holds everything, one state serves every shorter
 * place as well; under budgets a state serves its own place only, so that one is kept at a prompt's last place, for the
 * conversation that goes on, and one where a prompt parts from a known one, for the beginning that many share.
 *
 * The state that was used least recently leaves first. Finding one compares the tokens of every state. */
#ifndef WN_SERVE_PREFIX_H
#define WN_SERVE_PREFIX_H

#include <stdbool.h>
#include <stdint.h>
#include "winnow/model.h"

enum { WN_PREFIX_STATES = 1024 }; /* at most */

struct wn_prefix_counts {
  uint64_t prompts, found, tokens; /* prompts looked for, those whose beginning was found, tokens not read again */
  uint64_t bytes;                  /* of the states now */
  int states;
};

struct wn_prefix_state;
struct wn_prefix {
  uint64_t limit;                       /* bytes; 0: nothing is kept */
  struct wn_prefix_state *first, *last; /* the most recently used one; the least */
  struct wn_prefix_counts counts;
};

/* Where the states of a prompt are worth keeping; 0: nowhere. */
struct wn_prefix_places {
  int64_t part, last; /* where it parts from a known one, under budgets; its last place */
};

/* The session, which has seen nothing, takes over the longest known beginning of ids [count]; not all of them, for the
 * last one's logits are wanted. Returns the tokens that are not to be read. */
int64_t wn_prefix_find(struct wn_prefix *prefix, wn_session *session, const int32_t *ids, int64_t count);
/* After that. */
struct wn_prefix_places wn_prefix_places(const struct wn_prefix *prefix, const wn_session *session, const int32_t *ids,
                                         int64_t count);
/* Keeps the state of a session that has read ids [n], one of the places, where it fits into `room` bytes with others
 * that are used more recently; it is not kept where there is no memory. */
void wn_prefix_keep(struct wn_prefix *prefix, wn_context *ctx, const wn_session *session, const int32_t *ids, int64_t n,
                    uint64_t room);
/* What was used least recently leaves, until the rest takes at most so many bytes. */
void wn_prefix_shrink(struct wn_prefix *prefix, uint64_t bytes);

#endif
