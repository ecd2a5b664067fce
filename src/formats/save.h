/* Saving a model as part of a larger folder. */
#ifndef WN_FORMATS_SAVE_H
#define WN_FORMATS_SAVE_H

#include "text/tokenizer.h"
#include "winnow/model.h"

/* Writes what wn_model_save writes into f->next; tok may be NULL. */
wn_status wn_model_write(wn_context *ctx, const wn_model *model, const wn_tokenizer *tok, struct wn_folder *f);

#endif
