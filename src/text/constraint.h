/* Constraints, for the layers above. */
#ifndef WN_TEXT_CONSTRAINT_H
#define WN_TEXT_CONSTRAINT_H

#include "text/json_machine.h"
#include "text/token_tree.h"
#include "winnow/constraint.h"

/* wn_constraint_create_json with a parsed schema (NULL: any object) and a tree of tokens, which is borrowed. */
wn_status wn_constraint_create_tree(wn_context *ctx, const struct wn_token_tree *tree, const json_t *schema,
                                    wn_constraint **out);
/* 1 for each token that may come next, else 0 [entries]; valid until the next call. NULL: out of memory. */
const uint8_t *wn_constraint_allowed(wn_constraint *constraint);
/* The same for drawing an id below V. *over: the text has ended; else at least one of allowed [entries] is 1. */
wn_status wn_constraint_next(wn_context *ctx, wn_constraint *constraint, int64_t V, bool *over, const uint8_t **allowed,
                             int32_t *entries);

#endif
