/* What a run must know before it starts: vocabulary, contexts, tokenizer. */
#ifndef WN_TRAIN_PREPARE_H
#define WN_TRAIN_PREPARE_H

#include "winnow/tokenizer.h"
#include "winnow/train.h"

/* Loads the tokenizer from `tokenizer_from` (a spec or folder; "" or NULL: none), fills model.vocab_size and the
 * contexts where they are 0, checks that vocabularies agree and resolves the model's config. *tok is NULL without a
 * tokenizer; the caller destroys it. */
wn_status wn_run_prepare(wn_context *ctx, wn_recipe *recipe, const char *tokenizer_from, wn_tokenizer **tok);

/* Copies every parameter of the model from the checkpoint `from`. The two may differ in everything without parameters:
 * losses, dropout, masks. WN_ERR_CONFIG names the first parameter that the checkpoint lacks or has in another shape. */
struct wn_model;
wn_status wn_run_take_parameters(wn_context *ctx, const char *from, struct wn_model *model);

#endif
