/* winnow: constraints. Under a constraint only tokens that continue a JSON text can be drawn: any object, or a value
 * that fits a JSON schema. docs/json.md lists the part of JSON Schema that is supported.
 *
 * A constraint follows one text: for each token call wn_constraint_mask, then wn_constraint_accept with the token
 * drawn. wn_generate does both (wn_generate_options.constraint). Whatever is drawn, the text can be completed: there is
 * always a token that continues it, and once a token that ends a text is drawn the text is valid. */
#ifndef WINNOW_CONSTRAINT_H
#define WINNOW_CONSTRAINT_H

#include "winnow/tokenizer.h"

WN_STABLE_BEGIN

/* A constraint and how far its text is; opaque. */
typedef struct wn_constraint wn_constraint;

/* schema: a JSON schema [bytes]; NULL: any JSON object. A keyword that is not supported is WN_ERR_UNSUPPORTED, a
 * malformed one WN_ERR_FORMAT; the message names the place ("schema #/properties/age: ..."). A tokenizer without tokens
 * for the characters of JSON is WN_ERR_UNSUPPORTED. tok is borrowed until all its constraints are destroyed. */
wn_status wn_constraint_create_json(wn_context *ctx, const wn_tokenizer *tok, const char *schema, size_t bytes,
                                    wn_constraint **out);
/* A new constraint for the same schema, at the beginning of a text. Any thread may call it, while no other thread uses
 * `constraint`. */
wn_status wn_constraint_copy(wn_context *ctx, const wn_constraint *constraint, wn_constraint **out);
void wn_constraint_destroy(wn_constraint *constraint); /* NULL is allowed */
void wn_constraint_reset(wn_constraint *constraint);   /* back to the beginning of a text */

/* Sets the logits [V] of tokens that may not come next to minus infinity. Tokens that end a text are allowed where the
 * text is complete; where it also cannot be continued, only they are. *over: nothing may follow and the tokenizer has
 * no token that ends a text; the logits are left as they were. V: at least the tokenizer's vocabulary. */
wn_status wn_constraint_mask(wn_context *ctx, wn_constraint *constraint, float *logits, int64_t V, bool *over);
/* Appends the token to the text. WN_ERR_ARGUMENT: it may not come here, and the text stays as it was. */
wn_status wn_constraint_accept(wn_context *ctx, wn_constraint *constraint, int32_t id);
bool wn_constraint_is_complete(const wn_constraint *constraint); /* the text so far is valid */

WN_API_END
#endif
