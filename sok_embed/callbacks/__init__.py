"""Keras callbacks: files and backups with rows, dense weights of several workers, figures."""

from sok_embed.callbacks.adaptive_metrics import AdaptiveMetrics
from sok_embed.callbacks.averaged_logs import AverageMetrics
from sok_embed.callbacks.backup_and_restore import BackupAndRestore
from sok_embed.callbacks.best_epoch import EarlyStopping
from sok_embed.callbacks.broadcast_variables import BroadcastVariables
from sok_embed.callbacks.eviction_metrics import EvictionMetrics
from sok_embed.callbacks.model_checkpoint import ModelCheckpoint
from sok_embed.callbacks.projector import Projector
from sok_embed.callbacks.publish_deltas import PublishDeltas
from sok_embed.callbacks.table_metrics import TableMetrics

__all__ = [
    "AdaptiveMetrics",
    "AverageMetrics",
    "BackupAndRestore",
    "BroadcastVariables",
    "EarlyStopping",
    "EvictionMetrics",
    "ModelCheckpoint",
    "Projector",
    "PublishDeltas",
    "TableMetrics",
]
