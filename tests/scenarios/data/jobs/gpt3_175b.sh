#!/bin/bash
# A Megatron-LM job as people write them: arrays, variables, comments, continued lines.
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-128}
TP=8
PP="8"
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
DATA_PATH=$1

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
MODEL_ARGS=(
    --num-layers 96 # as published
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --hidden-dropout 0.0 --attention-dropout 0.0
)
TRAINING_ARGS="--micro-batch-size 1 --global-batch-size 1536 --bf16 --lr 6.0e-5 --clip-grad 1.0"

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} $TRAINING_ARGS \
    --tensor-model-parallel-size $TP \
    --pipeline-model-parallel-size ${PP} \
    --num-layers-per-virtual-pipeline-stage 2 \
    --sequence-parallel --use-distributed-optimizer \
    --overlap-grad-reduce --overlap-param-gather --tp-comm-overlap \
    --recompute-activations \
    --vocab-file gpt2-vocab.json --data-path $DATA_PATH --log-interval 10
