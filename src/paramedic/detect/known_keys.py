"""Names that frameworks accept, gathered from their sources (DeepSpeed 0.9 to 0.19, accelerate 0.20 to 1.15, Lightning
2.6, Megatron-LM of 2026, Slurm 25.05). A name missing here is only called wrong when it nearly is one of these."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


DEEPSPEED_ZERO = words(
    """stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce
        allgather_partitions allgather_bucket_size overlap_comm compute_grad_norm load_from_fp32_weights
        elastic_checkpoint offload_param offload_optimizer zenflow sub_group_size cpu_offload_param
        cpu_offload_use_pin_memory cpu_offload stage3_prefetch_bucket_size prefetch_bucket_size
        stage3_param_persistence_threshold param_persistence_threshold stage3_model_persistence_threshold
        model_persistence_threshold stage3_max_live_parameters max_live_parameters stage3_max_reuse_distance
        max_reuse_distance stage3_gather_16bit_weights_on_model_save gather_16bit_weights_on_model_save
        stage3_module_granularity_threshold module_granularity_threshold
        stage3_use_all_reduce_for_fetch_params use_all_reduce_for_fetch_params stage3_allgather_sequential
        allgather_sequential stage3_gather_fp16_weights_on_model_save ignore_unused_parameters legacy_stage1
        round_robin_gradients parameter_alignment zero_hpz_partition_size zero_quantized_weights
        zero_quantized_nontrainable_weights zero_quantized_gradients memory_efficient_linear
        pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings enable_sanity_checks
        save_muon_momentum_buffer_in_memory leaf_module mics_shard_size mics_hierarchical_params_gather
        zeropp_loco_param"""
)
DEEPSPEED = frozenset(
    words(
        """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps steps_per_print dump_state
        disable_python_gc disable_allgather communication_data_type seq_parallel_communication_data_type
        prescale_gradients gradient_predivide_factor gradient_allreduce_op zero_optimization
        activation_checkpointing comms_logger monitor_config tensorboard wandb csv_monitor comet
        gradient_clipping fp16 bf16 bfloat16 torch_autocast optimizer scheduler
        zero_allow_untested_optimizer zero_force_ds_cpu_optimizer flops_profiler wall_clock_breakdown
        memory_breakdown autotuning use_data_before_expert_parallelism hybrid_engine pipeline
        data_efficiency checkpoint data_types aio dataloader_drop_last log_level datastates
        weight_quantization compile timers tensor_parallel expert_parallel sequence_parallel_size
        vocabulary_size managed_gradient_accumulation fp32_allreduce amp elasticity sparse_gradients
        sparse_attention eigenvalue progressive_layer_drop curriculum_learning compression_training
        quantize_training nebula graph_harvesting use_node_local_storage load_universal_checkpoint
        inference_optimized comms_config mixed_precision allgather_size zero_quantized_weights data_type
        checkpoint_tag_validation zenflow domino"""
    )
)
DEEPSPEED_REMOVED = dict.fromkeys(
    words(
        """nebula compression_training amp quantize_training sparse_gradients eigenvalue sparse_attention elasticity
        graph_harvesting curriculum_learning progressive_layer_drop mics_shard_size
        mics_hierarchical_params_gather zeropp_loco_param"""
    ),
    "0.19",
)
DEEPSPEED_WHOLE_NUMBERS = words(
    """reduce_bucket_size allgather_bucket_size sub_group_size stage3_prefetch_bucket_size
        stage3_param_persistence_threshold stage3_model_persistence_threshold stage3_max_live_parameters
        stage3_max_reuse_distance"""
)
DEEPSPEED_OPTIMIZERS = frozenset(
    words("""adagrad adam adamw lamb muadam muadamw musgd lion muon onebitadam onebitlamb zerooneadam""")
)
ZERO_TESTED_OPTIMIZERS = frozenset(words("adam adamw adagrad lion muon lamb muadam muadamw"))
TORCH_OPTIMIZERS = frozenset(
    words("""ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD SparseAdam""")
)
DEEPSPEED_SCHEDULERS = frozenset(words("LRRangeTest OneCycle WarmupLR WarmupDecayLR WarmupCosineLR"))
TORCH_SCHEDULERS = frozenset(
    words(
        """ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR ExponentialLR LRScheduler
        LambdaLR LinearLR MultiStepLR MultiplicativeLR OneCycleLR PolynomialLR ReduceLROnPlateau
        SequentialLR StepLR"""
    )
)
ACCELERATE = frozenset(
    words(
        """compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank num_machines
        gpu_ids main_process_ip main_process_port rdzv_backend same_network main_training_function
        enable_cpu_affinity fp8_config deepspeed_config fsdp_config parallelism_config megatron_lm_config
        mpirun_config downcast_bf16 tpu_name tpu_zone tpu_use_cluster tpu_use_sudo command_file commands
        tpu_vm tpu_env dynamo_config dynamo_backend fp16 ipex_config ec2_instance_type iam_role_name
        image_uri profile region base_job_name pytorch_version transformers_version py_version
        sagemaker_inputs_file sagemaker_metrics_file additional_args deepspeed_hostfile monitor_interval
        max_restarts tp_config"""
    )
)
LIGHTNING_REMOVED = {
    "gpus": 'accelerator="gpu", devices=…',
    "num_processes": 'accelerator="cpu", devices=…',
    "tpu_cores": 'accelerator="tpu", devices=…',
    "ipus": 'accelerator="ipu", devices=…',
    "auto_select_gpus": "devices",
    "resume_from_checkpoint": "trainer.fit(…, ckpt_path=…)",
    "replace_sampler_ddp": "use_distributed_sampler",
    "amp_backend": "precision",
    "amp_level": "precision",
    "auto_scale_batch_size": "Tuner.scale_batch_size",
    "auto_lr_find": "Tuner.lr_find",
    "move_metrics_to_cpu": "nothing",
    "progress_bar_refresh_rate": "TQDMProgressBar(refresh_rate=…)",
    "weights_summary": "enable_model_summary",
    "checkpoint_callback": "enable_checkpointing",
    "distributed_backend": "strategy",
    "multiple_trainloader_mode": "CombinedLoader(mode=…)",
}
MEGATRON_REMOVED = {
    "batch_size": "--micro-batch-size and --global-batch-size",
    "warmup": "--lr-warmup-fraction",
    "model_parallel_size": "--tensor-model-parallel-size",
    "checkpoint_activations": "--recompute-activations, or --recompute-granularity full --recompute-method uniform",
    "checkpoint_num_layers": "--recompute-num-layers",
    "no_position_embedding": "--position-embedding-type",
}
SBATCH = frozenset(
    words(
        """account acctg_freq array batch bb bbf begin chdir cluster_constraint clusters comment constraint container
        container_id container_image container_mounts container_name container_workdir contiguous core_spec
        cores_per_socket cpu_freq cpus_per_gpu cpus_per_task deadline delay_boot dependency distribution
        error exclude exclusive export export_file extra extra_node_info get_user_env gid gpu_bind gpu_freq
        gpus gpus_per_node gpus_per_socket gpus_per_task gres gres_flags help hint hold ignore_pbs input
        job_name kill_on_invalid_dep licenses mail_type mail_user mcs_label mem mem_bind mem_per_cpu
        mem_per_gpu mincpus network nice no_kill no_requeue nodefile nodelist nodes ntasks ntasks_per_core
        ntasks_per_gpu ntasks_per_node ntasks_per_socket open_mode output overcommit oversubscribe parsable
        partition power prefer priority profile propagate qos quiet reboot requeue reservation resv_ports
        segment signal sockets_per_node spread_job stepmgr switches test_only thread_spec threads_per_core
        time time_min tmp tres_bind tres_per_task uid usage use_min_nodes verbose version wait
        wait_all_nodes wckey wrap oom_kill_step"""
    )
)
