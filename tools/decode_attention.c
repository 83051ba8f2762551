/* One new token per row against that row's own keys and values, in bfloat16, for rows of different lengths.
 *
 * Compiled by target_writer.py with -DSIZE (head width) and -DGROUP (query heads per key head). Reads each cached value
 * once, so its time is the time of reading the cache: PyTorch's batched product copies the cache first when the rows are
 * not as long as their slots. Rows [first, last) only, so that threads can share the work.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline void widen(const uint16_t *from, float *to) {
    for (int d = 0; d < SIZE; d++) {
        uint32_t bits = (uint32_t)from[d] << 16;
        memcpy(&to[d], &bits, 4);
    }
}

/* q, out: [rows, heads * SIZE] binary32; k, v: [rows, key_heads, context, SIZE] bfloat16; last position of each row. */
void decode_attention(const float *q, const uint16_t *k, const uint16_t *v, const int64_t *positions, float *out,
                      int64_t first, int64_t last, int64_t key_heads, int64_t context, float *scores) {
    float scale = 1.0f / sqrtf((float)SIZE);
    for (int64_t row = first; row < last; row++) {
        int64_t reach = positions[row] + 1;
        for (int64_t head = 0; head < key_heads; head++) {
            const float *query = q + (row * key_heads + head) * GROUP * SIZE;
            const uint16_t *key = k + (row * key_heads + head) * context * SIZE;
            const uint16_t *value = v + (row * key_heads + head) * context * SIZE;
            float *target = out + (row * key_heads + head) * GROUP * SIZE;
            float top[GROUP], total[GROUP], sum[GROUP][SIZE], wide[SIZE];
            for (int g = 0; g < GROUP; g++) top[g] = -INFINITY, total[g] = 0.0f;
            memset(sum, 0, sizeof sum);
            for (int64_t t = 0; t < reach; t++) {
                widen(key + t * SIZE, wide);
                for (int g = 0; g < GROUP; g++) {
                    float dot = 0.0f;
                    for (int d = 0; d < SIZE; d++) dot += query[g * SIZE + d] * wide[d];
                    dot *= scale;
                    scores[g * context + t] = dot;
                    if (dot > top[g]) top[g] = dot;
                }
            }
            for (int g = 0; g < GROUP; g++)
                for (int64_t t = 0; t < reach; t++) {
                    float weight = expf(scores[g * context + t] - top[g]);
                    scores[g * context + t] = weight;
                    total[g] += weight;
                }
            for (int64_t t = 0; t < reach; t++) {
                widen(value + t * SIZE, wide);
                for (int g = 0; g < GROUP; g++)
                    for (int d = 0; d < SIZE; d++) sum[g][d] += scores[g * context + t] * wide[d];
            }
            for (int g = 0; g < GROUP; g++)
                for (int d = 0; d < SIZE; d++) target[g * SIZE + d] = sum[g][d] / total[g];
        }
    }
}
