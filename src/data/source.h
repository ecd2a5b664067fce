/* Checks of a data source, for the layers above. */
#ifndef WN_DATA_SOURCE_H
#define WN_DATA_SOURCE_H

#include "winnow/data.h"

/* Checks that the source's sequences have T tokens, and the encoder's at most S (0: the model has no encoder, and the
 * source must have no sequences for one). Else WN_ERR_ARGUMENT; `what` ("evaluation") begins the sentence. Ids are
 * checked against the vocabulary when they are read. */
wn_status wn_data_source_check(wn_context *ctx, const char *what, const wn_data_source *source, int64_t T, int64_t S);

/* What a sequence is: "block" of a token file, "document" or "case" of a synthetic task. Static. */
const char *wn_data_source_unit(const wn_data_source *source);

#endif
