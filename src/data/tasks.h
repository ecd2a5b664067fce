/* Synthetic tasks: a sample is a pure function of (config, split, seed, row), row being the sequence's number. */
#ifndef WN_DATA_TASKS_H
#define WN_DATA_TASKS_H

#include "winnow/data.h"

/* Vocabulary of Copy: three special tokens, then the symbols. */
enum wn_copy_token { WN_COPY_BOS, WN_COPY_SEPARATOR, WN_COPY_EOS, WN_COPY_SYMBOL };

/* Fills one sequence: tokens, targets [T]. T must be at least what wn_data_config_requirements says. Positions after
 * the sample are padding and do not count. */
void wn_task_sample(const wn_data_config *config, bool val, uint64_t seed, uint64_t row, int64_t T, int32_t *tokens,
                    int32_t *targets);

#endif
