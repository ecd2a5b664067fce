/* Training checkpoints: several files that always belong to one step. */
#ifndef WN_TRAIN_CHECKPOINT_H
#define WN_TRAIN_CHECKPOINT_H

#include <stdbool.h>

#include "train/trainer.h"
#include "winnow/tokenizer.h"

/* state.json. Random numbers need no state: every number is a function of (seed, step). */
struct wn_run_state {
  int64_t step, streamed; /* streamed: tokens of the streams so far */
  uint64_t tokens, seed;
  int threads, processes;
  char backend[16], isa[16], optimizer[16];
  char parameters[24], moments[24]; /* fingerprints of the arrays, so that files of different steps are recognised */
};

/* Does dir hold a checkpoint, complete or to be completed by wn_folder_recover (io/folder.h)? */
bool wn_checkpoint_exists(const char *dir);
/* Saves model, tokenizer (may be NULL), recipe, optimizer and state of the trainer's step. All processes must call it;
 * rank 0 writes what the others send. A failure or a kill at any moment leaves the previous checkpoint or the new one,
 * never a mixture. */
wn_status wn_checkpoint_save(wn_context *ctx, const char *dir, const wn_recipe *recipe, const wn_tokenizer *tok,
                             wn_trainer *trainer);
/* Reads only state.json. */
wn_status wn_checkpoint_state(wn_context *ctx, const char *dir, struct wn_run_state *out);
/* Restores the trainer's optimizer, step and token count; its model was loaded from dir before. WN_ERR_FORMAT if the
 * files are not of one step. */
wn_status wn_checkpoint_load(wn_context *ctx, const char *dir, wn_trainer *trainer, struct wn_run_state *out);

#endif
