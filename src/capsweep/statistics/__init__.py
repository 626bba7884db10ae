"""Pure statistics: functions of arrays and numbers, which import no other package of capsweep."""
