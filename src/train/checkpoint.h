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
  char parameters[24], moments[24]; /* fingerprints of the arrays, so that files of two steps cannot pass as one */
};

/* Whether dir holds a checkpoint, finished or to be finished by wn_folder_recover (io/folder.h). */
bool wn_checkpoint_exists(const char *dir);
/* Of several processes all call, and rank 0 writes what the others send it. Saves model, tokenizer (may be NULL),
 * recipe, optimizer and state of the trainer's step. A failure or a kill at any instant leaves the previous checkpoint
 * or the new one, never a mixture. */
wn_status wn_checkpoint_save(wn_context *ctx, const char *dir, const wn_recipe *recipe, const wn_tokenizer *tok,
                             wn_trainer *trainer);
/* Reads state.json alone. */
wn_status wn_checkpoint_state(wn_context *ctx, const char *dir, struct wn_run_state *out);
/* Fills the trainer's optimizer, step and tokens; its model was loaded from dir. WN_ERR_FORMAT when the files are not
 * of one step. */
wn_status wn_checkpoint_load(wn_context *ctx, const char *dir, wn_trainer *trainer, struct wn_run_state *out);

#endif
