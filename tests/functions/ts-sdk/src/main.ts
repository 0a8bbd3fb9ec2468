import { run } from 'kpt-functions';
import { generateNamespace } from './namespace_generator';

void run(generateNamespace);
