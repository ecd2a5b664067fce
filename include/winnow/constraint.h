/* winnow: constraints, which leave only those tokens to be drawn that continue a JSON text: any object, or a value that
 * fits a JSON schema. docs/json.md lists the part of JSON Schema that is served.
 *
 * A constraint follows one text: for each token wn_constraint_mask, then wn_constraint_accept with what was drawn.
 * wn_generate does both (wn_generate_options.constraint). Whatever is drawn, the text can be completed: there always is
 * a token that goes on, and the text is valid once a token that ends a text is drawn. */
#ifndef WINNOW_CONSTRAINT_H
#define WINNOW_CONSTRAINT_H

#include "winnow/tokenizer.h"

WN_EXPERIMENTAL_BEGIN

/* A constraint and how far its text is; opaque. */
typedef struct wn_constraint wn_constraint;

/* schema: a JSON schema [bytes]; NULL: any JSON object. A keyword that is not served is WN_ERR_UNSUPPORTED, one that is
 * wrong WN_ERR_FORMAT; the line names the place ("schema #/properties/age: ..."). A tokenizer without tokens for the
 * characters of JSON is WN_ERR_UNSUPPORTED. tok is borrowed until all its constraints are destroyed. */
wn_status wn_constraint_create_json(wn_context *ctx, const wn_tokenizer *tok, const char *schema, size_t bytes,
                                    wn_constraint **out);
/* Another one for the same schema, at its beginning. From any thread that does not use `constraint` meanwhile for
 * anything else. */
wn_status wn_constraint_copy(wn_context *ctx, const wn_constraint *constraint, wn_constraint **out);
void wn_constraint_destroy(wn_constraint *constraint); /* NULL is allowed */
void wn_constraint_reset(wn_constraint *constraint);   /* back to the beginning of a text */

/* Sets the logits [V] of the tokens that may not come next to minus infinity. Tokens that end a text may come where the
 * text is complete, and nothing but them where it cannot be continued. *over: nothing may follow, and the tokenizer has
 * no token that says so; the logits are as they were. V: at least the tokenizer's vocabulary. */
wn_status wn_constraint_mask(wn_context *ctx, wn_constraint *constraint, float *logits, int64_t V, bool *over);
/* The token continues the text. WN_ERR_ARGUMENT: it may not come here, and the text is as it was. */
wn_status wn_constraint_accept(wn_context *ctx, wn_constraint *constraint, int32_t id);
bool wn_constraint_is_complete(const wn_constraint *constraint); /* the text so far is valid */

WN_API_END
#endif
