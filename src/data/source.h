/* What a data source was created with. */
#ifndef WN_DATA_SOURCE_H
#define WN_DATA_SOURCE_H

#include "winnow/data.h"

/* The rows of this source have T tokens, and those of the encoder at most S (0: the model has no encoder, and the
 * source no rows for one). WN_ERR_ARGUMENT otherwise; `what` ("evaluation") begins the sentence. Ids are compared with
 * the model's vocabulary where they are read. */
wn_status wn_data_source_check(wn_context *ctx, const char *what, const wn_data_source *source, int64_t T, int64_t S);

#endif
