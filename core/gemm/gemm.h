/* core/gemm/gemm.h - the base model's linears: y = x W^T over packed weights.
 *
 * A weight is packed once at start into panels of `gemm_panel()` outputs, in its
 * stored precision: f32 stays 32-bit, f16 and bf16 stay 16-bit, and quantised types have as many
 * bits as their file has (4, 5, 6 or 8), with their scales as stored. 16-bit and quantised
 * panels are widened to f32 in registers for a few rows; for more, a block of k at a
 * time into the caller's scratch, reused for every row of the call. Either way the
 * values are exactly those of tensor_to_f32(), and arithmetic is f32 throughout.
 *
 * That is GEMM_EXACT. With the other precisions x is made bf16 or 8-bit integers first,
 * once for all linears that read it, and multiplied with what the panel holds:
 *
 *   GEMM_BF16   float weights, rounded to bf16; quantised ones as in GEMM_EXACT, or, where there
 *               are tiles, as they are stored, and bf16 block by block as they are multiplied
 *   GEMM_INT8   quantised weights as stored; float weights rounded to 8 bits, 32 values
 *               with one scale as in Q8_0, as those of x
 *   GEMM_INT8_ROTATED  float weights: of both factors each 32 values of k are multiplied by a
 *               Hadamard matrix first, which spreads a value that is much larger than its
 *               neighbours over all 32 and leaves products as they are (as QuaRot does, Ashkboos
 *               et al. 2024). So a weight does with one scale for up to 1,024 values of a row;
 *               x has one for 32. For quantised weights it is GEMM_INT8.
 *   GEMM_INT8_WHOLE  the same, but that both are rotated by 64 values, and x too has one scale for
 *               a block of k: so integers are summed over all of it, which tiles of AMX can do at
 *               twice their rate of bf16. Also of Q8_0, whose weights are rounded once more.
 *
 * Their bits are the same at every level, portable included, but for GEMM_BF16 with AMX, which
 * adds in another order (core/kern/kern.h). Without a typed x, for CPUs that multiply bf16 no
 * faster than f32:
 *
 *   GEMM_BF16_WEIGHTS  weights of 32 bits and more are rounded to bf16; then as GEMM_EXACT
 *
 * At the portable level the product is OpenBLAS's (this folder is the only one
 * that includes cblas.h; BLAS runs single-threaded, the pool owns the cores). Decompositions
 * of whole weights are in dense.h.
 *
 * For one output element the sum runs over k in the same order whatever the
 * number of rows and the column range: a row's bits do not depend on its batch.
 * (The portable level does not promise this: OpenBLAS picks kernels by shape.)
 *
 * Threads: a packed weight is immutable; gemm_run() is re-entrant, each caller
 * with its own scratch. Callers split columns (multiples of the panel) and rows.
 */
#ifndef CORE_GEMM_GEMM_H
#define CORE_GEMM_GEMM_H

#include <stddef.h>

#include "core/kern/kern.h"
#include "core/weights/tensor.h"

struct core_room;
struct core_err;
struct gemm_weight;

enum gemm_precision {
    GEMM_EXACT,
    GEMM_BF16,
    GEMM_INT8,
    GEMM_INT8_ROTATED,
    GEMM_INT8_WHOLE,
    GEMM_BF16_WEIGHTS,
    GEMM_N_PRECISIONS
};
/* How to round to bf16 at these levels (enum kern_level): GEMM_BF16 where an instruction makes it
 * faster than f32, else GEMM_BF16_WEIGHTS. */
enum gemm_precision gemm_bf16_at(unsigned levels);
/* The 8 bits of a model without quantised weights: GEMM_INT8_ROTATED, or GEMM_INT8_WHOLE where
 * there are tiles for it. */
enum gemm_precision gemm_int8_at(const struct kern_table *k);
/* Whether weights of it are multiplied with typed x, if not all are quantised. */
bool gemm_is_typed(enum gemm_precision p);
/* Whether quantised weights of the type are multiplied as p, a typed one, says; else it is as
 * GEMM_INT8 or GEMM_EXACT does. */
bool gemm_takes(const struct kern_table *k, enum gemm_precision p, enum tensor_type quantised);

/* Packs W [n_out, n_in] (2-dimensional, any float or quantised type; quantised
 * n_in is a whole number of blocks) for the levels of `k` and at most the precision
 * asked for. *out is the caller's: gemm_weight_free(). The tensor's data may go away
 * afterwards. CORE_E_NOMEM, CORE_E_ADAPTER_MISMATCH (not a matrix). */
int gemm_pack(struct gemm_weight **out, const struct kern_table *k, enum gemm_precision precision,
              const struct tensor *w, struct core_err *err);
/* The same for several threads: gemm_new() makes room, and gemm_fill() packs one of the
 * gemm_n_panels(). Each is filled once, all of them before the first product, by any
 * thread, several at a time. Larger weights take their bytes from `room`, which lives longer than
 * they; NULL: of their own. */
int gemm_new(struct gemm_weight **out, const struct kern_table *k, enum gemm_precision precision,
             const struct tensor *w, struct core_room *room, struct core_err *err);
size_t gemm_n_panels(const struct gemm_weight *w);
void gemm_fill(struct gemm_weight *w, const struct kern_table *k, const struct tensor *t,
               size_t panel);
/* What gemm_new() and gemm_fill() would make, over bytes that another weight of an equal tensor,
 * form, layout and precision had (gemm_data()): borrowed, 64-byte aligned, never written to, and
 * alive as long as the weight is. Only type and shape of `t` are read. Also CORE_E_INTERNAL: such
 * a weight does not have n_bytes. */
int gemm_new_over(struct gemm_weight **out, const struct kern_table *k,
                  enum gemm_precision precision, const struct tensor *t, const void *bytes,
                  size_t n_bytes, struct core_err *err);
void gemm_weight_free(struct gemm_weight *w); /* NULL is fine */

/* The bytes of a weight that is filled, borrowed. */
const void *gemm_data(const struct gemm_weight *w, size_t *n_bytes);
/* Their form at the levels of `k`: "panels", or "rows" as stored. */
const char *gemm_form(const struct kern_table *k);
/* The version of these bytes: whoever keeps them keeps it too, and packs again where it is
 * another. */
unsigned gemm_layout(void);

size_t gemm_n_out(const struct gemm_weight *w);
size_t gemm_n_in(const struct gemm_weight *w);
size_t gemm_weight_bytes(const struct gemm_weight *w);
/* Outputs per panel: column ranges begin at multiples of it. */
size_t gemm_panel(const struct gemm_weight *w);
/* What it is multiplied with: x itself, or rows that gemm_make_x() made for this. */
enum gemm_precision gemm_precision(const struct gemm_weight *w);
/* Whether its sums begin with the bias that gemm_run() is given, so that they are others than those
 * without it to which it is added: with tiles of AMX they are (kern.h, gemm_bf16). */
bool gemm_begins_with_bias(const struct gemm_weight *w);
/* Bytes of one row of typed x, pairs (below) included, a multiple of 4; for GEMM_EXACT of packed x
 * (below), 0 where there is none. */
size_t gemm_x_bytes(const struct kern_table *k, enum gemm_precision p, size_t n_in);
/* One row of typed x; p not GEMM_EXACT. */
void gemm_make_x(const struct kern_table *k, enum gemm_precision p, size_t n_in, const float *x,
                 void *out);
/* Whether a product with this weight reads a row of 8-bit x as pairs of 16 bits, too
 * (kern.h, int8_pairs). gemm_make_pairs() makes them of the row that gemm_make_x() has made, behind
 * it; weights that read none are not disturbed by them. */
bool gemm_reads_pairs(const struct gemm_weight *w);
void gemm_make_pairs(const struct kern_table *k, size_t n_in, void *row);
/* Whether products of many rows with this weight, a GEMM_EXACT one, are faster if x is packed: some
 * rows side by side, value by value, in tiles as large as GEMM_PACKED_ROWS rows of gemm_x_bytes(),
 * without gaps between them. Bits are the same. gemm_packed_rows() are those of a tile of n_rows,
 * at most GEMM_PACKED_ROWS and about alike; gemm_pack_x() makes a tile of n_rows. */
enum { GEMM_PACKED_ROWS = KERN_X_ROWS };
bool gemm_reads_packed(const struct gemm_weight *w);
size_t gemm_packed_rows(size_t n_rows);
void gemm_pack_x(const struct kern_table *k, size_t n_in, size_t n_rows, const float *x, size_t ldx,
                 void *out);
/* Bytes of scratch one gemm_run() needs, an upper bound over all weights and
 * shapes; 64-byte aligned memory. */
size_t gemm_scratch_bytes(void);

/* Rows of each of the pieces in which n_rows had better be multiplied by w, so that their inputs
 * stay in a cache while all panels pass: about alike, and but for the last piece whole tiles of the
 * kernels (but neon-dotprod's, of 5 rows). is_alone: one caller does all of them. */
size_t gemm_piece_rows(const struct gemm_weight *w, size_t n_rows, bool is_alone);

/* A panel: the one with the outputs from `col` on. */
struct gemm_place {
    const struct gemm_weight *w;
    size_t col;
};

struct gemm_args {
    const float *x; /* [n_rows, n_in], row stride ldx */
    size_t ldx, n_rows;
    float *y; /* [n_rows, n_out], row stride ldy; only [col0, col1) is written */
    size_t ldy;
    size_t col0, col1; /* col0 a multiple of the panel; col1 too, or n_out */
    const float *bias; /* NULL, or [n_out]: added to each row; gemm_begins_with_bias() says where */
    void *scratch;
    /* Typed x: n_rows rows of gemm_x_bytes(), if gemm_precision() is not GEMM_EXACT; x is
     * not read then. If it is, where gemm_reads_packed() says so: NULL, or x once more, packed from
     * its first row on in tiles of packed_rows, which are all of n_rows or GEMM_PACKED_ROWS. */
    const void *typed_x;
    size_t packed_rows;
    /* What the caller will multiply by next: memory is asked for its first block beside the last
     * panel, as beside each panel for the one behind it. Without a weight for what stands behind.
     */
    struct gemm_place next;
};

/* y[i, j] = sum_k x[i, k] * W[j, k], + bias[j], for j in [col0, col1). Overwrites y. */
void gemm_run(const struct gemm_weight *w, const struct gemm_args *a);

/* Asks memory for a piece, a KiB, of what the product of the outputs [col0, col1) reads, from byte
 * `at` of it on. Returns its length, 0 at the end. */
size_t gemm_ask(const struct gemm_weight *w, size_t col0, size_t col1, size_t at);

/* OpenBLAS's words for its version and the kernels that it chose. */
const char *gemm_blas_text(void);

#endif
