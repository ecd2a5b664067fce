/* Snapshots: what a session holds at a place of its text, in memory of that size. Sessions created alike, of any
 * capacity, continue from it with the bits of one that has read the text itself. Private. */
#ifndef WN_DECODE_SNAPSHOT_H
#define WN_DECODE_SNAPSHOT_H

#include "winnow/model.h"

struct wn_snapshot;

/* Does the session know its earlier states too? Where it holds everything, and no later token changes what an earlier
 * one has left. */
bool wn_snapshot_rolls_back(const wn_session *session);
/* The bytes that a snapshot at `position` takes, up to where the session is. */
size_t wn_snapshot_need(const wn_session *session, int64_t position);
/* The state after the first `position` tokens, at least one: the session's own position, or an earlier one where it
 * rolls back. */
wn_status wn_snapshot_take(wn_context *ctx, const wn_session *session, int64_t position, struct wn_snapshot **out);
void wn_snapshot_destroy(struct wn_snapshot *snapshot); /* NULL is allowed */
/* Was `session` created like the one it is of: model, budgets, options, cache format, and what each layer may hold? */
bool wn_snapshot_suits(const struct wn_snapshot *snapshot, const wn_session *session);
/* The session, which it suits, is where the other was after `position` tokens: the snapshot's own, or fewer where it
 * rolls back; below the session's capacity. The last token's logits are not known. */
wn_status wn_snapshot_restore(const struct wn_snapshot *snapshot, int64_t position, wn_session *session);
int64_t wn_snapshot_position(const struct wn_snapshot *snapshot);

#endif
