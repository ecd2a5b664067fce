/* Snapshots: what a session holds at a place of its text, in as much memory as that takes. Sessions created with the
 * same options, of any capacity, continue from it with the same bits as one that has read the text itself. Private. */
#ifndef WN_DECODE_SNAPSHOT_H
#define WN_DECODE_SNAPSHOT_H

#include "winnow/model.h"

struct wn_snapshot;

/* Can a snapshot be taken of the session's earlier states too? True if it holds everything and later tokens do not
 * change what is kept of earlier ones. */
bool wn_snapshot_rolls_back(const wn_session *session);
/* The bytes of a snapshot at `position`, at most the session's position. */
size_t wn_snapshot_need(const wn_session *session, int64_t position);
/* Takes the state after the first `position` tokens, at least one: at the session's position, or earlier if it rolls
 * back. */
wn_status wn_snapshot_take(wn_context *ctx, const wn_session *session, int64_t position, struct wn_snapshot **out);
void wn_snapshot_destroy(struct wn_snapshot *snapshot); /* NULL is allowed */
/* Was `session` created like the snapshot's session: with the same model, budgets, options, cache format, and what each
 * layer may hold? Are the same of the snapshot's positions pinned? */
bool wn_snapshot_suits(const struct wn_snapshot *snapshot, const wn_session *session);
/* Puts a session that the snapshot suits into the state after `position` tokens: the snapshot's position, or fewer if
 * it rolls back; below the session's capacity. The last token's logits are not known then. */
wn_status wn_snapshot_restore(const struct wn_snapshot *snapshot, int64_t position, wn_session *session);

#endif
