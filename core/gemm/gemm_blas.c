/* core/gemm/gemm_blas.c - the portable level: weights as stored, OpenBLAS's sgemm.
 *
 * f32 matrices are multiplied in place; other types are converted block by block
 * into the caller's scratch by tensor_to_f32(). OpenBLAS picks its kernel by shape,
 * so at this level a row's bits may depend on the size of its batch. */
#include <cblas.h>
#include <pthread.h>
#include <string.h>

#include "core/gemm/gemm_internal.h"

static void blas_init(void)
{
    openblas_set_num_threads(1); /* the pool owns the cores */
}

void gemm__blas_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, blas_init);
}

bool gemm__blas_sizes(struct gemm_weight *w)
{
    gemm__blas_start();
    w->is_blas = true;
    return tensor_row_bytes(w->type, w->n_out * w->n_in, &w->n_bytes); /* each fits an int */
}

void gemm__blas_pack(struct gemm_weight *w, const struct tensor *t, size_t panel)
{
    const size_t row_bytes = w->n_bytes / w->n_out, row = panel * KERN_PANEL;
    const size_t n_rows = w->n_out - row < KERN_PANEL ? w->n_out - row : KERN_PANEL;

    if (w->type == t->type) {
        memcpy((char *)w->bytes + row * row_bytes, (const char *)t->data + row * row_bytes,
               n_rows * row_bytes);
        return;
    }
    for (size_t j = row; j < row + n_rows; j++)
        gemm__round_row(t, j, (uint16_t *)w->bytes + j * w->n_in, 1);
}

static struct tensor as_tensor(const struct gemm_weight *w)
{
    return (struct tensor){.name = "",
                           .type = w->type,
                           .n_dims = 2,
                           .dim = {w->n_out, w->n_in},
                           .data = w->bytes,
                           .n_bytes = w->n_bytes};
}

const char *gemm_blas_text(void)
{
    return openblas_get_config();
}

static void sgemm(const struct gemm_args *a, size_t n_cols, size_t n_k, const float *x,
                  const float *w, size_t ldw, float beta, float *y)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)a->n_rows, (int)n_cols, (int)n_k,
                1.0f, x, (int)a->ldx, w, (int)ldw, beta, y, (int)a->ldy);
}

static void blas_products(const struct gemm_weight *w, const struct gemm_args *a)
{
    const struct tensor t = as_tensor(w);

    if (w->type == TENSOR_F32) {
        sgemm(a, a->col1 - a->col0, w->n_in, a->x, (const float *)w->bytes + a->col0 * w->n_in,
              w->n_in, 0.0f, a->y + a->col0);
        return;
    }
    for (size_t j = a->col0; j < a->col1; j += GEMM__BLAS_COLS) {
        const size_t n_cols = a->col1 - j < GEMM__BLAS_COLS ? a->col1 - j : GEMM__BLAS_COLS;

        for (size_t k = 0; k < w->n_in; k += GEMM__BLAS_K) {
            const size_t n_k = w->n_in - k < GEMM__BLAS_K ? w->n_in - k : GEMM__BLAS_K;
            float *block = a->scratch;

            for (size_t i = 0; i < n_cols; i++)
                tensor_to_f32(&t, (j + i) * w->n_in + k, n_k, block + i * n_k);
            sgemm(a, n_cols, n_k, a->x + k, block, n_k, k ? 1.0f : 0.0f, a->y + j);
        }
    }
}

void gemm__blas_run(const struct gemm_weight *w, const struct gemm_args *a)
{
    blas_products(w, a);
    for (size_t i = 0; a->bias && i < a->n_rows; i++)
        for (size_t j = a->col0; j < a->col1; j++)
            a->y[i * a->ldy + j] += a->bias[j];
}
